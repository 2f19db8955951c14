#!/usr/bin/env bash
# Table 5 of the ResiDual paper: which of Post-LN, Pre-LN and ResiDual train with and without warm-up, at 6 and 12 layers.
# The paper: IWSLT14, 256/1024/4, lr 5e-4, 4000 updates of warm-up or none; BLEU by `scripts/resi_dual/table8.sh`. --paper
# draws the training losses of those recipes without warm-up. Small: races of narrow models at DEPTHS (default "6 12")
# to copy synthetic tokens, with and without warm-up.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
if [ $SCALE = small ]; then
    for depth in ${DEPTHS:-6 12}; do
        race --variants post_ln pre_ln resi_dual --layers "$depth" --seeds "${SEEDS:-1}" --updates "${UPDATES:-300}" \
            --warmup 50 0 --name "$FIGURE-${depth}l"
    done
    exit
fi
for variant in post_ln pre_ln resi_dual; do
    for depth in 6 12; do
        model "$variant-$depth" "resi_dual/table8/${depth}l_${variant}_inverse_sqrt" ""
    done
done
draw --metric loss --subset train valid
