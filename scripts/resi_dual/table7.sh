#!/usr/bin/env bash
# Table 7: WMT En-De, 18 layers. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce resi_dual/table7 "$@"
