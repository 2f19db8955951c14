#!/usr/bin/env bash
# Figure 3 of the DLCL paper: BLEU against the depth of the encoder, Pre-LN and DLCL (Pre-LN).
# The paper: `scripts/dlcl/figure3.sh` trains and scores its models; give this script the outputs of their fairseq-generate,
# which name model and depth themselves. Small: DEPTHS (default "2 4 6") encoder layers, 2 decoder layers.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
for depth in ${DEPTHS:-2 4 6}; do
    small 'evaluated/*.log' "$depth" pre_ln dlcl_pre --score --override model.decoder_layers=2
done
draw --metric bleu --subset test --against encoder-layers
