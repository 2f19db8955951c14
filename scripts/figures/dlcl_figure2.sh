#!/usr/bin/env bash
# Figure 2 of the DLCL paper: the weights by which an encoder of 3 layers combines them: all 1 as in a dense residual
# connection, transparent attention, and DLCL. (A residual connection alone weighs nothing: each layer reads the sum.) Weights
# are drawn as they start; `fairseq-residuals weights --checkpoint FILE` draws learned ones. Flags go on to it.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
variants=(dlcl_pre/weights=fixed_one,norm=false transparent_attention dlcl_pre)
exec fairseq-residuals weights --variants "${variants[@]}" --layers 3 --dim 32 --ffn-dim 64 --heads 4 \
    --out "${OUT:-figures}" --name dlcl_figure2 "$@"
