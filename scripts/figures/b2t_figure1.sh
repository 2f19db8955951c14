#!/usr/bin/env bash
# Figure 1 of the B2T paper: training and validation loss of 18L-18L Transformers, Post-LN, Pre-LN and B2T.
# The paper: WMT En-De, 512/2048/8, 458,752 tokens, lr 0.001, 4000 updates of warm-up, 50k updates, dropout 0.3: the logs of
# `scripts/b2t/table1.sh`. Small: DEPTH (default 18) layers.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small 'train.*.log' "${DEPTH:-18}" post_ln pre_ln b2t
draw --metric loss --subset train valid
