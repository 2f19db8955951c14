#!/usr/bin/env bash
# Figure 1 of the ResiDual paper: a layer of Post-LN, Pre-LN and ResiDual. Flags go on to `fairseq-residuals explain`.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals explain post_ln pre_ln resi_dual --stack encoder --out "${OUT:-figures}" --name resi_dual_figure1 "$@"
