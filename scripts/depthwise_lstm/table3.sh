#!/usr/bin/env bash
# Table 3: WMT14 En-De, merging in the decoder. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce depthwise_lstm/table3 "$@"
