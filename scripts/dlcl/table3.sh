#!/usr/bin/env bash
# Table 3: NIST Zh-En. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/table3 "$@"
