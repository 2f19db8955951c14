#!/usr/bin/env bash
# Table 3: WMT En-De, averages. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce resi_dual/table3 "$@"
