#!/usr/bin/env bash
# The gallery's picture of gradient norms per layer for every variant, in the order of `fairseq-residuals list`, before the
# first update: the models of b2t_figure3.sh. Further flags go on to `fairseq-residuals gradients`.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
variants=(
    post_ln transparent_attention dlcl_post dlcl_pre pre_ln admin depthwise_lstm re_zero t_fixup layer_scale normformer
    realformer sandwich_ln deepnet sub_ln b2t b2t_no_ln resi_dual dense_former hyper_connections mix_ln post_sublayer_norm
    hybrid_norm layernorm_scaling mhc peri_ln attention_residuals keel siamese_norm
)
size=(--layers 18 --dim 512 --ffn-dim 2048 --heads 8 --vocabulary 32768 --share-all-embeddings --training --dropout 0.3)
exec fairseq-residuals gradients --variants "${variants[@]}" "${size[@]}" --out "${OUT:-figures}" \
    --name gallery_gradients_all "$@"
