#!/usr/bin/env bash
# Table 7: WMT En-De, learning rate, warm-up and batch size. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/table7 "$@"
