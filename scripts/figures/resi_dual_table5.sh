#!/usr/bin/env bash
# Table 5 of the ResiDual paper: which of Post-LN, Pre-LN and ResiDual train with and without warm-up, at 6 and 12 layers.
# The paper: IWSLT14, 256/1024/4, lr 5e-4, 4000 updates of warm-up or none; BLEU by `scripts/resi_dual/table8.sh`, whose logs
# this script draws. Small: narrow models at DEPTHS (default "6 12").
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
for depth in ${DEPTHS:-6 12}; do
    small 'train.*.log' "$depth" post_ln pre_ln resi_dual post_ln@warmup=0 pre_ln@warmup=0 resi_dual@warmup=0
done
draw --metric loss --subset train valid
