#!/usr/bin/env bash
# Table 5: WMT En-De, decoder depth, pre-norm Base. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/table5 "$@"
