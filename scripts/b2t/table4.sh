#!/usr/bin/env bash
# Table 4: Language modelling on WikiText-103. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/table4 "$@"
