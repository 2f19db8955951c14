#!/usr/bin/env bash
# Figure 6 of the B2T paper: validation NLL (newstest2013) of all methods at 18L-18L.
# The paper (--paper): the 18L-18L rows of Table 1. Small: LAYERS (default 6) layers in each stack.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
methods b2t/table1/18l_METHOD post_ln pre_ln b2t admin deepnet realformer t_fixup dlcl
draw --metric nll_loss --subset valid
