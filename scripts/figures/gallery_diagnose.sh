#!/usr/bin/env bash
# The gallery's diagnosis: an 18L-18L Post-LN model of 64/128/4 that learns nothing, and what its log says of it. A minute.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
LAYERS="${LAYERS:-18}" UPDATES="${UPDATES:-200}"
model post_ln "" "" --arch transformer_post_ln --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
train
[ -n "${DRY_RUN:-}" ] || fairseq-residuals diagnose "${LOGS[0]}" ${CORPUS:+--data "$CORPUS"} --out "$OUT" --name "$FIGURE"
