#!/usr/bin/env bash
# Figure 3 of the B2T paper: gradient norms of the layers of Post-LN, Pre-LN and B2T, in encoder and decoder.
# The paper: 18L-18L, 512/2048/8, one matrix of 32k embeddings, dropout 0.3, at the beginning of training on WMT En-De. Here the
# tokens are synthetic; `--data DIR --source-lang en --target-lang de` takes them from a corpus. Further flags go on to
# `fairseq-residuals gradients`.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
size=(--layers 18 --dim 512 --ffn-dim 2048 --heads 8 --vocabulary 32768 --share-all-embeddings --training --dropout 0.3)
exec fairseq-residuals gradients --variants post_ln pre_ln b2t "${size[@]}" --out "${OUT:-figures}" --name b2t_figure3 "$@"
