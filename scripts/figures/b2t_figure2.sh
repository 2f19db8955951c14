#!/usr/bin/env bash
# Figure 2 of the B2T paper: a layer of Post-LN, Pre-LN and the B2T connection. Flags go on to `fairseq-residuals explain`.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals explain post_ln pre_ln b2t --stack decoder --out "${OUT:-figures}" --name b2t_figure2 "$@"
