#!/usr/bin/env bash
# Sourced by the figures of trained models. Such a FIGURE.sh is called in one of two ways:
#   FIGURE.sh          trains narrow models on short sentences to copy, by `fairseq-residuals compare`: minutes on a CPU
#   FIGURE.sh FILE...  draws logs or checkpoints that exist, such as those of the recipes that the script names
# OUT=DIR is where everything goes (default: figures).
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
FIGURE="$(basename "$0" .sh)"
OUT="${OUT:-figures}"
FILES=("$@")
GIVEN=$#
METRIC=nll_loss

# Trains the wirings, unless files were given, and adds to FILES what each run has of PATTERN.
#   small PATTERN DEPTH WIRING... [FLAG...]
small() {
    local pattern="$1" depth="$2"
    shift 2
    [ "$GIVEN" = 0 ] || return 0
    METRIC=loss # of plain cross-entropy
    fairseq-residuals compare "$@" --task copy --depth "$depth" --baseline "$1" --rates 0.001 --seeds 1 --baseline-seeds 1 \
        --keep-checkpoints --out "$OUT/$FIGURE-$depth"
    # shellcheck disable=SC2206
    FILES+=("$OUT/$FIGURE-$depth"/copy-*/runs/compare/copy/*/seed1/$pattern)
}

# Draws the curves of FILES.
draw() {
    fairseq-residuals curves "${FILES[@]}" --out "$OUT" --name "$FIGURE" "$@"
}
