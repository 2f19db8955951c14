#!/usr/bin/env bash
# Table 1: WMT En-De, 6 and 18 layers. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/table1 "$@"
