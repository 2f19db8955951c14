#!/usr/bin/env bash
# The JoeyNMT exercise's ppl_lineplot.png and ppl_table.csv: validation perplexity of its baseline, pre- and post-norm models.
# The paper: 4 + 1 layers, 256/512/2, lr 3e-4, 2048 tokens, label smoothing 0.3, 40,500 updates: the logs of
# `scripts/joeynmt/perplexity.sh`,
#   joeynmt_ppl_lineplot.sh Baseline=a.log Prenorm=b.log Postnorm=c.log
# Small: 4 + 1 narrow layers, pre- and post-norm.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small 'train.*.log' 4 pre_ln post_ln --override model.decoder_layers=1
FIGURE=ppl_lineplot
draw --metric ppl --subset valid --wide "Validation ppl"
mv "$OUT/ppl_lineplot.csv" "$OUT/ppl_table.csv"
