#!/usr/bin/env bash
# Figure 9 of the B2T paper: best validation NLL (newstest2013) of Pre-LN and B2T against the layers of both stacks together.
# The paper: logs of its 18L-18L rows with 6, 12, 18, 36 and 50 layers in each stack. Small: DEPTHS (default "2 4 6").
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
for depth in ${DEPTHS:-2 4 6}; do
    small 'train.*.log' "$depth" pre_ln b2t
done
draw --metric "$METRIC" --subset valid --against layers
