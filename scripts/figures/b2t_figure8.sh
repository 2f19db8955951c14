#!/usr/bin/env bash
# Figure 8 of the B2T paper: validation NLL (newstest2013) of Pre-LN and B2T at 36L-36L, which overfit when trained as
# 6L-6L and 18L-18L were.
# The paper (--paper): its 18L-18L recipes with 36 layers. Small: LAYERS (default 12) layers in each stack.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
LAYERS="${LAYERS:-12}"
for variant in pre_ln b2t; do
    model "$variant" "b2t/table1/18l_$variant" "model._name=transformer_${variant}_wmt_en_de_36l" \
        --arch "transformer_$variant" --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
done
draw --metric nll_loss --subset valid
