#!/usr/bin/env bash
# Figures 1 to 4 of the depth-wise LSTM paper: the LSTM along depth, its unit, and a layer of encoder and decoder with it.
# Flags go on to `fairseq-residuals explain`.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals explain depthwise_lstm --out "${OUT:-figures}" --name depthwise_lstm_figures1-4 "$@"
