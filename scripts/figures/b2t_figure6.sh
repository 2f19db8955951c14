#!/usr/bin/env bash
# Figure 6 of the B2T paper: validation NLL (newstest2013) of all methods at 18L-18L.
# The paper (--paper): the 18L-18L rows of Table 1. Small: LAYERS (default 6) layers in each stack.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
LAYERS="${LAYERS:-6}"
for method in post_ln pre_ln b2t admin deepnet realformer t_fixup dlcl; do
    variant="$method"
    [ "$method" != dlcl ] || variant=dlcl_post
    model "$method" "b2t/table1/18l_$method" "" --arch "transformer_$variant" --encoder-layers "$LAYERS" \
        --decoder-layers "$LAYERS"
done
draw --metric nll_loss --subset valid
