#!/usr/bin/env bash
# Figure 3: BLEU against encoder depth. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce dlcl/figure3 "$@"
