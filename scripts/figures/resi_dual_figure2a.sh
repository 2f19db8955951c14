#!/usr/bin/env bash
# Figure 2 (a) of the ResiDual paper: gradient norms of the layers of Post-LN, Pre-LN and ResiDual.
# The paper: 36 layers, 256/1024/4, initialised as fairseq does, a synthetic batch of 16 sentences of 20 tokens. (It does not say
# whether these are an encoder, a decoder or both: here 36 of each, an encoder-decoder.)
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
size=(--layers 36 --dim 256 --ffn-dim 1024 --heads 4 --sentences 16 --tokens 20)
exec fairseq-residuals gradients --variants post_ln pre_ln resi_dual "${size[@]}" --out "${OUT:-figures}" \
    --name resi_dual_figure2a "$@"
