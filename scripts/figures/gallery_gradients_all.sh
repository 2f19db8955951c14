#!/usr/bin/env bash
# The numbers of results/gradients.md, gradient norms per layer for every wiring, in the order of `fairseq-residuals list`, before the
# first update: the models of b2t_figure3.sh. Further flags go on to `fairseq-residuals gradients`.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
size=(--layers 18 --dim 512 --ffn-dim 2048 --heads 8 --vocabulary 32768 --share-all-embeddings --training --dropout 0.3)
exec fairseq-residuals gradients --variants all "${size[@]}" --out "${OUT:-figures}" \
    --name gallery_gradients_all "$@"
