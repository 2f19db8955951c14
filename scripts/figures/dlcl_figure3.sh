#!/usr/bin/env bash
# Figure 3 of the DLCL paper: BLEU against the depth of the encoder, Pre-LN and DLCL (Pre-LN).
# The paper: `scripts/dlcl/figure3.sh` trains and scores its models; give this script the outputs of their fairseq-generate,
# which name model and depth themselves. Small: DEPTHS (default "2 4 6") encoder layers, 2 decoder layers, synthetic sentences.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
[ $SCALE != paper ] || { echo "$FIGURE: train with scripts/dlcl/figure3.sh, then give the logs of fairseq-generate" >&2; exit 2; }
if [ $SCALE = small ]; then
    for LAYERS in ${DEPTHS:-2 4 6}; do
        for variant in pre_ln dlcl_pre; do
            model "$variant" "" "" --arch "transformer_$variant" --encoder-layers "$LAYERS" --decoder-layers 2
        done
    done
    train
    GENERATED=()
    for log in "${LOGS[@]}"; do
        [ -n "${DRY_RUN:-}" ] || fairseq-generate "$CORPUS" --user-dir "$ROOT/fairseq_residuals" --gen-subset test --beam 4 \
            --path "${log%.log}/checkpoint_last.pt" --cpu --num-workers 0 --batch-size 64 >"${log%.log}-generate.txt" 2>&1
        GENERATED+=("${log%.log}-generate.txt")
    done
    LOGS=("${GENERATED[@]}")
fi
draw --metric bleu --subset test --against encoder-layers
