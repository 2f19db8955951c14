#!/usr/bin/env bash
# The methods of B2T's Table 1 on IWSLT14, 6, 12 and 18 layers: ours. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce iwslt14_de_en/methods "$@"
