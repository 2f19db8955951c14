#!/usr/bin/env bash
# Figure 8 of the B2T paper: validation NLL (newstest2013) of Pre-LN and B2T at 36L-36L, which overfit when trained as
# 6L-6L and 18L-18L were.
# The paper: logs of its 18L-18L rows with `--override model._name=transformer_b2t_wmt_en_de_36l`. Small: DEPTH (default 12)
# layers in each stack.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small 'train.*.log' "${DEPTH:-12}" pre_ln b2t
draw --metric "$METRIC" --subset valid
