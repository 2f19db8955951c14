#!/usr/bin/env bash
# Figure 1 of the B2T paper: training and validation loss of 18L-18L Transformers, Post-LN, Pre-LN and B2T.
# The paper (--paper): WMT En-De, 512/2048/8, 458,752 tokens, lr 0.001, 4000 updates of warm-up, 50k updates, dropout 0.3.
# Small: 18L-18L of 64/128/4 in a race to copy synthetic tokens, three seeds; about 8 minutes of one core.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
if [ $SCALE = small ]; then
    race --variants post_ln pre_ln b2t --layers "${LAYERS:-18}" --seeds "${SEEDS:-3}" --updates "${UPDATES:-300}"
    exit
fi
for variant in post_ln pre_ln b2t; do
    model "$variant" "b2t/table1/18l_$variant" ""
done
draw --metric loss --subset train valid
