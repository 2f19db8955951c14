#!/usr/bin/env bash
# Table 6: One layer of the standard Transformer made linear, WMT14 En-De. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce depthwise_lstm/table6 "$@"
