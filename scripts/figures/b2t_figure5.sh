#!/usr/bin/env bash
# Figure 5 of the B2T paper: cosine similarity between the outputs of the layers of trained 6L-6L models.
# The paper (--paper): Table 1's models, WMT En-De. Small: 64/128/4, trained to reverse synthetic sentences; minutes on a CPU.
# Checkpoints that exist: b2t_figure5.sh FILE... (look at them on a corpus with `fairseq-residuals similarity --data`).
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
GAME=reverse LAYERS="${LAYERS:-6}" UPDATES="${UPDATES:-600}"
for variant in post_ln pre_ln b2t; do
    model "$variant" "b2t/table1/6l_$variant" "" \
        --arch "transformer_$variant" --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
done
train
[ $SCALE = logs ] && CHECKPOINTS=("${LOGS[@]}") || CHECKPOINTS=("${LOGS[@]/%.log//checkpoint_last.pt}")
[ $SCALE = small ] && BATCH=(--data "$CORPUS") || BATCH=()
[ -n "${DRY_RUN:-}" ] || fairseq-residuals similarity --checkpoint "${CHECKPOINTS[@]}" "${BATCH[@]}" --out "$OUT" \
    --name "$FIGURE"
