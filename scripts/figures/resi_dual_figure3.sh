#!/usr/bin/env bash
# Figure 3 of the ResiDual paper: the condition number of the update of Adam against step and scale of the gradients.
# The paper: 1024 parameters, learning rate 1e-4, eps 1e-6, betas 0.9 and 0.98, sigma from 0 to 1e-7; which are the defaults.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals condition --out "${OUT:-figures}" --name resi_dual_figure3 "$@"
