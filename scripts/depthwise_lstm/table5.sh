#!/usr/bin/env bash
# Table 5: Depth, WMT14 En-De and WMT15 Cs-En. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce depthwise_lstm/table5 "$@"
