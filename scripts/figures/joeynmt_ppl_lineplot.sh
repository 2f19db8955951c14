#!/usr/bin/env bash
# The JoeyNMT exercise's ppl_lineplot.png and ppl_table.csv: validation perplexity of its baseline, pre- and post-norm models.
# The paper (--paper): 4 + 1 layers, 256/512/2, lr 3e-4, 2048 tokens, label smoothing 0.3, 40,500 updates; the perplexity is
# JoeyNMT's, of 4117 words. Small: 4 + 1 narrow layers; fairseq's perplexity.
# (Logs may be JoeyNMT's own validations: joeynmt_ppl_lineplot.sh Baseline=a.txt Prenorm=b.txt Postnorm=c.txt.)
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
LAYERS="4-1"
shape=(--arch transformer_pre_ln --encoder-layers 4 --decoder-layers 1)
model baseline joeynmt/perplexity/baseline "" "${shape[@]}" --residual-args final_norm=false --decoder-residual post_ln
model pre_norm joeynmt/perplexity/pre_norm "" "${shape[@]}"
model post_norm joeynmt/perplexity/post_norm "" --arch transformer_post_ln --encoder-layers 4 --decoder-layers 1
if [ $SCALE != logs ]; then
    names=(Baseline Prenorm Postnorm) each=$((${#LOGS[@]} / 3))
    for i in "${!LOGS[@]}"; do LOGS[i]="${names[i / each]}=${LOGS[i]}"; done
fi
metric=(--metric ppl)
[ $SCALE != paper ] || metric=(--joeynmt-ppl 4117 0.3)
FIGURE=ppl_lineplot
draw "${metric[@]}" --subset valid --title "Validation perplexities" --x-label Steps --y-label Perplexities \
    --wide "Validation ppl"
[ -n "${DRY_RUN:-}" ] || mv "$OUT/ppl_lineplot.csv" "$OUT/ppl_table.csv"
