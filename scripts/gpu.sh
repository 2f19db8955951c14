#!/usr/bin/env bash
# Tests on a GPU and then measures, in order of worth; a step that has ended well is not done again by the next call.
#   OUT=DIR     the folder of logs and figures (default: gpu_out in the checkout)
#   MINUTES=N   begin no step after so many minutes (default: 30)
#   DATA=DIR    compare wirings on this binarized text (default: debian_lm, which is downloaded)
#   SETUP=no    use the Python that PYTHON names (python3), with what is installed there, and install nothing
set -euo pipefail
if [ "${SETUP:-yes}" = no ]; then
    ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
    VENV_PYTHON="${PYTHON:-python3}"
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
else
    . "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
fi
cd "$ROOT"
OUT="${OUT:-$ROOT/gpu_out}"
MINUTES="${MINUTES:-30}"
"$VENV_PYTHON" -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "gpu.sh: error: PyTorch sees no GPU")'
mkdir -p "$OUT"
"$VENV_PYTHON" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' | tee "$OUT/device.txt"

# step NAME COMMAND...: its log is OUT/NAME.log, under another name until it has ended well.
failed=()
step() {
    local name="$1" log="$OUT/$1.log"
    shift
    if [ -f "$log" ]; then
        printf '%s: done before\n' "$name"
    elif [ "$SECONDS" -ge $((60 * MINUTES)) ]; then
        printf '%s: left for another call, after %s minutes\n' "$name" "$MINUTES"
    elif timeout 540 "$@" >"$log.part" 2>&1; then
        mv "$log.part" "$log"
        printf '%s: done, %s seconds since the start\n' "$name" "$SECONDS"
    else
        failed+=("$name")
        printf '%s: failed or took over nine minutes, see %s\n' "$name" "$log.part" >&2
        tail -n 3 "$log.part" >&2
    fi
}

bench() { # name, theme, flags
    local name="$1" theme="$2"
    shift 2
    step "$name" "$VENV_PYTHON" -m fairseq_residuals bench "$theme" --device cuda --repeats 3 --steps 10 --warmup 5 \
        --csv "$OUT/$name.csv" "$@"
}

# A wiring with what is fastest on a GPU: steps as CUDA graphs.
graphs() { # wiring
    printf '%s-graphs=%s --optimizer=fused_adam --criterion=chunked_label_smoothed_cross_entropy --cuda-graphs' "$1" "$1"
}

step tests "$VENV_PYTHON" -m pytest -q -p no:cacheprovider tests/test_on_gpu.py
step goldens "$VENV_PYTHON" -m tests.golden_check --device cuda tests/golden/*_S.npz
text="${DATA:+--data=$DATA}"
for part in 1 2; do # the second goes on where the first ended
    step "compare-$part" "$VENV_PYTHON" -m fairseq_residuals compare mudd mhc hyper_connections attention_residuals \
        "${text:---task=debian_lm}" --size d512 --updates 300 --gpus 1 --precision bf16 --hours 0.13 --out "$OUT/compare"
done
for precision in bf16 fp16; do
    bench "train-$precision" train --tokens 112x32 --layers 18 --precision "$precision" \
        --beside stock --variants post_ln --also "$(graphs post_ln)"
done
bench big train --tokens 448x32 --layers 6 --dims big --precision bf16 --beside stock --variants --also "$(graphs post_ln)"
bench deep train --tokens 112x32 --layers 100 --precision bf16 --beside --variants --also "$(graphs post_ln)"
"$VENV_PYTHON" -c 'import fairseq_residuals as r; print(*r.list_variants()[1:])' | xargs -n 6 >"$OUT/wirings.txt"
part=0
while read -r -a wirings; do
    part=$((part + 1))
    entries=()
    for wiring in post_ln "${wirings[@]}"; do entries+=("$(graphs "$wiring")"); done
    bench "costs-$part" train --tokens 112x32 --layers 18 --precision bf16 \
        --beside --variants --also "${entries[@]}" </dev/null
done <"$OUT/wirings.txt"
bench search generate --tokens 64x32 --layers 6 --beam 4 --precision fp16 --beside stock --variants pre_ln

if [ "${#failed[@]}" -gt 0 ]; then
    printf 'gpu.sh: error: not done: %s\n' "${failed[*]}" >&2
    exit 1
fi
