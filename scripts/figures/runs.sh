#!/usr/bin/env bash
# Sourced by the figures that are drawn from training logs. A figure FIGURE.sh is called in one of three ways:
#   FIGURE.sh                at small scale: narrow, shallow models on synthetic sentences; minutes on a CPU
#   FIGURE.sh --paper        with the paper's own set-up, by the recipes in configs/: GPUs, and data made by
#                            `fairseq-residuals prepare`; one run after the other, logs that are finished are reused
#   FIGURE.sh [LABEL=]LOG... draws logs that exist
# GPUS=N trains on so many devices with --paper (default 1); the effective batch stays the recipe's.
# DRY_RUN=1 prints the trainings instead of making them. OUT=DIR is where everything goes (default: figures).
# At small scale: LAYERS, UPDATES, SEEDS, DIM change the runs, GAME=copy or reverse what is learned, JOBS=N trains N at a time.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"

FIGURE="$(basename "$0" .sh)"
OUT="${OUT:-figures}"
[[ $OUT = /* ]] || OUT="$PWD/$OUT"
WORK="$OUT/$FIGURE"
SCALE=small
LOGS=()
case "${1:-}" in
    --paper) SCALE=paper ;;
    "") ;;
    *) SCALE=logs; LOGS=("$@") ;;
esac
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"

TRAININGS=""
training() { # LOG UPDATES COMMAND...
    if [ -n "${DRY_RUN:-}" ]; then
        printf '%q ' "${@:3}" && echo "> $1"
    else
        TRAININGS+="$1"$'\t'"$2"$'\t'"$(printf '%q ' "${@:3}")"$'\n'
    fi
}

# Runs the trainings that were listed, JOBS at a time (default 1), less those that are finished.
train() {
    [ -z "$TRAININGS" ] || python -m fairseq_residuals.lab.recipes.trainings --jobs "${JOBS:-1}" <<<"${TRAININGS%$'\n'}"
    TRAININGS=""
}

# Sentences of 4 to 10 words from a to t, a the most frequent, and their copies or reversals, binarized.
corpus() {
    local game="${GAME:-copy}" text="$WORK/text-${GAME:-copy}" split seed=0
    CORPUS="$WORK/corpus-$game"
    [ -z "${DRY_RUN:-}" ] && [ ! -d "$CORPUS" ] || return 0
    mkdir -p "$text"
    for split in train valid test; do
        seed=$((seed + 1))
        awk -v seed=$seed -v pairs=$([ $split = train ] && echo 6000 || echo 200) -v game="$game" \
            -v source="$text/$split.src" -v target="$text/$split.tgt" 'BEGIN {
            srand(seed)
            for (i = 0; i < pairs; i++) {
                n = 4 + int(7 * rand()); forward = backward = ""
                for (k = 0; k < n; k++) {
                    word = sprintf("%c", 97 + int(20 * rand() ^ 2))
                    forward = forward (k ? " " : "") word; backward = word (k ? " " : "") backward
                }
                print forward > source; print (game == "reverse" ? backward : forward) > target
            }
        }'
    done
    fairseq-preprocess --source-lang src --target-lang tgt --joined-dictionary --trainpref "$text/train" \
        --validpref "$text/valid" --testpref "$text/test" --destdir "$CORPUS.partial" >"$WORK/preprocess.log" 2>&1
    mv "$CORPUS.partial" "$CORPUS"
}

# Lists the training of one model: RECIPE names a row of configs/ for --paper, OVERRIDES change it; SMALL are flags of fairseq-train.
#   model NAME RECIPE "OVERRIDES" SMALL...
model() {
    local name="$1" recipe="$2" overrides="$3" seed
    shift 3
    if [ $SCALE = paper ]; then
        local row
        mapfile -t row < <(python -m fairseq_residuals.lab.recipes.rows "$ROOT/configs" "$recipe")
        # shellcheck disable=SC2206
        local command=(fairseq-hydra-train --config-dir "$ROOT/configs" --config-name "${row[@]}"
            "common.user_dir=$ROOT/fairseq_residuals" $overrides)
        if [ "${GPUS:-1}" -gt 1 ]; then # which share the recipe's batch
            # shellcheck disable=SC2086
            mapfile -t command < <(python -m fairseq_residuals.lab.recipes.trainings --recipe "$recipe" --gpus "$GPUS" $overrides)
        fi
        training "$WORK/$name.log" 0 "${command[@]}" "checkpoint.save_dir=$WORK/$name"
        LOGS+=("$WORK/$name.log")
    elif [ $SCALE = small ]; then
        corpus
        for seed in $(seq 1 "${SEEDS:-1}"); do
            local run="$WORK/$name-${GAME:-copy}-${LAYERS:-}-${DIM:-64}-${UPDATES:-300}-seed$seed"
            training "$run.log" "${UPDATES:-300}" fairseq-train "$CORPUS" --user-dir "$ROOT/fairseq_residuals" \
                --encoder-embed-dim "${DIM:-64}" --encoder-ffn-embed-dim $((2 * ${DIM:-64})) --encoder-attention-heads 4 \
                --decoder-embed-dim "${DIM:-64}" --decoder-ffn-embed-dim $((2 * ${DIM:-64})) --decoder-attention-heads 4 \
                --share-all-embeddings --dropout 0 --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.001 \
                --lr-scheduler inverse_sqrt --warmup-updates 50 --criterion label_smoothed_cross_entropy \
                --label-smoothing 0.1 --max-tokens 400 --max-update "${UPDATES:-300}" --seed "$seed" --cpu \
                --num-workers 0 --log-format json --log-interval 10 --validate-interval-updates 50 --log-residual-stats 10 \
                --no-epoch-checkpoints --save-dir "$run" "$@"
            LOGS+=("$run.log")
        done
    fi
}

# Lists the trainings of methods with LAYERS (default 6) layers in each stack at small scale: PATTERN names their recipes, with
# METHOD in the place of each one's name.
#   methods PATTERN METHOD...
methods() {
    local pattern="$1" method variant
    shift
    LAYERS="${LAYERS:-6}"
    for method; do
        variant="$method"
        [ "$method" != dlcl ] || variant=dlcl_post
        model "$method" "${pattern/METHOD/$method}" "" --arch "transformer_$variant" --encoder-layers "$LAYERS" \
            --decoder-layers "$LAYERS"
    done
}

# The picture, by `fairseq-residuals curves` with these flags.
draw() {
    train
    [ -n "${DRY_RUN:-}" ] || fairseq-residuals curves "${LOGS[@]}" --out "$OUT" --name "$FIGURE" "$@"
}

# A race of narrow models in a game on synthetic tokens, by `fairseq-residuals race` with these flags.
race() {
    local command=(fairseq-residuals race --dim "${DIM:-64}" --ffn-dim $((2 * ${DIM:-64})) --heads 4 --game "${GAME:-copy}"
        --tokens 10 --vocabulary 30 --sentences 32 --warmup 50 --jobs "${JOBS:-1}" --out "$OUT" --name "$FIGURE" "$@")
    if [ -n "${DRY_RUN:-}" ]; then printf '%q ' "${command[@]}" && echo; else "${command[@]}"; fi
}
