#!/usr/bin/env bash
# Table 4: WMT14 En-De, sharing of parameters. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce depthwise_lstm/table4 "$@"
