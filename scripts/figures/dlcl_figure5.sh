#!/usr/bin/env bash
# Figure 5 of the DLCL paper: the learned weights of DLCL (Pre-LN) in encoder and decoder, and those of one layer's output.
# The paper: the 30-layer encoder and 6-layer decoder of Table 1, WMT En-De, and y_10: give the checkpoint. Small: DEPTH
# (default 12) and 6 layers that learn to copy short sentences.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small checkpoints/checkpoint_last.pt "${DEPTH:-12}" dlcl_pre pre_ln --override model.decoder_layers=6
fairseq-residuals weights --checkpoint "${FILES[0]}" --out "$OUT" --name "$FIGURE"
