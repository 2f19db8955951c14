#!/usr/bin/env bash
# Figure 10 of the B2T paper: validation NLL (newstest2013) of DeepNet and B2T at 100L-100L with a small batch, where DeepNet
# diverges.
# The paper (--paper): its 100L-100L recipe; how small the batch was it does not say: UPDATE_FREQ (default 4) batches of 3584
# tokens. Small: LAYERS (default 18) layers in each stack.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
LAYERS="${LAYERS:-18}"
for variant in deepnet b2t; do
    model "$variant-${UPDATE_FREQ:-4}" b2t/table2/100l_b2t \
        "model._name=transformer_${variant}_wmt_en_de_100l optimization.update_freq=[${UPDATE_FREQ:-4}]" \
        --arch "transformer_$variant" --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
done
draw --metric nll_loss --subset valid
