#!/usr/bin/env bash
# Table 1: WMT14 En-De and En-Fr. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce depthwise_lstm/table1 "$@"
