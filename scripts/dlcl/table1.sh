#!/usr/bin/env bash
# Table 1: WMT En-De, encoder depth. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/table1 "$@"
