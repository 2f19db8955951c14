#!/usr/bin/env bash
# Table 2: WMT En-De, encoder of 16 layers. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/table2 "$@"
