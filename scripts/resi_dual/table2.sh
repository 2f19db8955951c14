#!/usr/bin/env bash
# Table 2: IWSLT14 De-En. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce resi_dual/table2 "$@"
