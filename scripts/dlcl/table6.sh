#!/usr/bin/env bash
# Table 6: WMT En-De, ablations. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/table6 "$@"
