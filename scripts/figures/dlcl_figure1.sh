#!/usr/bin/env bash
# Figure 1 of the DLCL paper: the residual unit with the norm after the sum and before the sub-layer. Flags go on to
# `fairseq-residuals explain`.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals explain post_ln pre_ln --stack encoder --out "${OUT:-figures}" --name dlcl_figure1 "$@"
