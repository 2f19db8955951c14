#!/usr/bin/env bash
# Tables 6 and 7 of the depth-wise LSTM paper: BLEU lost when one layer becomes a linear map, with residuals and with the LSTM.
# The paper: 6 layers, Base, WMT En-De, the map trained on the training set: scripts/depthwise_lstm/table6.sh and table7.sh.
# The picture of checkpoints that exist: DATA=DIR depthwise_lstm_tables6_7.sh residual.pt lstm.pt (UPDATES trains each map).
# Small: 6 narrow layers that learn to copy short sentences; the maps are least squares fits.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small checkpoints/checkpoint_last.pt 6 pre_ln depthwise_lstm
if [ "$GIVEN" = 0 ]; then
    fit=(--data "$OUT/$FIGURE-6/data/copy/data-bin")
else
    fit=(--data "${DATA:?names the binarized corpus}" --lenpen 0 --fit 200 --updates "${UPDATES:-1000}" --device "${DEVICE:-cpu}")
fi
fairseq-residuals linearize "${FILES[@]}" "${fit[@]}" --split test --metric bleu --out "$OUT" --name "$FIGURE"
