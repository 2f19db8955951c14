#!/usr/bin/env bash
# Table 6: WMT En-De, 6 layers. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce resi_dual/table6 "$@"
