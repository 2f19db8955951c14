#!/usr/bin/env bash
# Figure 5 of the DLCL paper: the learned weights of DLCL (Pre-LN) in encoder and decoder, and those of one layer's output.
# The paper (--paper): the 30-layer encoder and 6-layer decoder of Table 1, WMT En-De, and y_10. Small: 12 and 6 layers of
# 64/128/4, trained to reverse synthetic sentences; minutes on a CPU. A checkpoint that exists: dlcl_figure5.sh FILE.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
GAME=reverse LAYERS="${LAYERS:-12}" UPDATES="${UPDATES:-600}"
model dlcl_pre dlcl/table1/pre_dlcl_deep_30l "" --arch transformer_dlcl_pre --encoder-layers "$LAYERS" --decoder-layers 6
train
[ $SCALE = logs ] && CHECKPOINTS=("${LOGS[@]}") || CHECKPOINTS=("${LOGS[@]/%.log//checkpoint_last.pt}")
[ -n "${DRY_RUN:-}" ] || fairseq-residuals weights --checkpoint "${CHECKPOINTS[@]}" --out "$OUT" --name "$FIGURE"
