#!/usr/bin/env bash
# Table 3: Headline generation. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/table3 "$@"
