#!/usr/bin/env bash
# Table 8: WMT En-De without layer norms inside. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/table8 "$@"
