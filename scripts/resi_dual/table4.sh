#!/usr/bin/env bash
# Table 4: OPUS-100. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce resi_dual/table4 "$@"
