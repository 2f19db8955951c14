#!/usr/bin/env bash
# Table 2: WMT14 En-De, layers of the hidden state's network. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce depthwise_lstm/table2 "$@"
