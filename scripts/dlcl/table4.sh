#!/usr/bin/env bash
# Table 4: WMT Zh-En, large. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/table4 "$@"
