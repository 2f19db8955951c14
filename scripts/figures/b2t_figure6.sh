#!/usr/bin/env bash
# Figure 6 of the B2T paper: validation NLL (newstest2013) of all methods at 18L-18L.
# The paper: the logs of the 18L-18L rows of `scripts/b2t/table1.sh`. Small: DEPTH (default 6) layers in each stack.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small 'train.*.log' "${DEPTH:-6}" post_ln pre_ln b2t admin deepnet realformer t_fixup dlcl_post
draw --metric "$METRIC" --subset valid
