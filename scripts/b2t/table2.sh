#!/usr/bin/env bash
# Table 2: WMT En-De, 100 layers. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/table2 "$@"
