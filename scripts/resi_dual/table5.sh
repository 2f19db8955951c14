#!/usr/bin/env bash
# Table 5: IWSLT14 De-En with and without warm-up. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce resi_dual/table5 "$@"
