#!/usr/bin/env bash
# Figure 10 of the B2T paper: validation NLL (newstest2013) of DeepNet and B2T at 100L-100L with a small batch, where DeepNet
# diverges.
# The paper: logs of `b2t/table2/100l_b2t` and of DeepNet in its place; how small the batch was it does not say. Small: DEPTH
# (default 18) layers in each stack, updates of TOKENS (default 200) tokens.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small 'train.*.log' "${DEPTH:-18}" deepnet b2t --tokens "${TOKENS:-200}"
draw --metric "$METRIC" --subset valid
