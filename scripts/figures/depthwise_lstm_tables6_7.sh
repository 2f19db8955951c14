#!/usr/bin/env bash
# Tables 6 and 7 of the depth-wise LSTM paper: BLEU lost when one layer becomes a linear map, with residuals and with the LSTM.
# The paper: 6 layers, Base, WMT En-De, the map trained on the training set: scripts/depthwise_lstm/table6.sh and table7.sh.
# The picture of them, or of other checkpoints:
#   depthwise_lstm_tables6_7.sh DATA residual.pt lstm.pt         (DEVICE=cuda; UPDATES trains each map, default 1000)
# Small: 6 narrow layers that learn to reverse synthetic sentences; the maps are least squares fits.
case "${1:-}" in "" | --paper) ;; *) DATA="$1" CHECKPOINTS=("${@:2}"); set -- ;; esac
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
[ $SCALE != paper ] || { sed -n '3,6s/^# //p' "$0" >&2; exit 2; }
if [ -n "${DATA:-}" ]; then
    exec fairseq-residuals linearize "${CHECKPOINTS[@]}" --data "$DATA" --split test --metric bleu --lenpen 0 --fit 200 \
        --updates "${UPDATES:-1000}" --device "${DEVICE:-cpu}" --out "$OUT" --name "$FIGURE"
fi
LAYERS="${LAYERS:-6}" UPDATES="${UPDATES:-2000}" GAME="${GAME:-reverse}"
for variant in pre_ln depthwise_lstm; do
    model "$variant" "" "" --arch "transformer_$variant" --encoder-layers "$LAYERS" --decoder-layers "$LAYERS"
done
train
[ -n "${DRY_RUN:-}" ] || fairseq-residuals linearize "${LOGS[@]/%.log//checkpoint_last.pt}" --data "$CORPUS" --split test \
    --metric bleu --out "$OUT" --name "$FIGURE"
