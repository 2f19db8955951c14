#!/usr/bin/env bash
# Table 7: One layer of the depth-wise LSTM made linear, WMT14 En-De. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce depthwise_lstm/table7 "$@"
