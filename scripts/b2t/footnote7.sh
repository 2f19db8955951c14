#!/usr/bin/env bash
# Footnote 7 and the text: WMT En-De newstest2014, 18L-18L. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/footnote7 "$@"
