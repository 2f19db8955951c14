#!/usr/bin/env bash
# Figure 9 of the B2T paper: best validation NLL (newstest2013) of Pre-LN and B2T against the layers of both stacks together.
# The paper (--paper): its 18L-18L recipes with 6, 12, 18, 36 and 50 layers in each stack. Small: DEPTHS (default "2 4 6").
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
[ $SCALE != paper ] || DEPTHS="6 12 18 36 50"
for LAYERS in ${DEPTHS:-2 4 6}; do
    for variant in pre_ln b2t; do
        model "$variant-$LAYERS" "b2t/table1/18l_$variant" "model._name=transformer_${variant}_wmt_en_de_${LAYERS}l" \
            --arch "transformer_$variant" --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
    done
done
draw --metric nll_loss --subset valid --against layers
