#!/usr/bin/env bash
# Measures speed and memory of every variant beside stock fairseq and other libraries (`fairseq-residuals bench`), and
# writes THEME-DEVICE-DATE.md and .csv, of scaling also .png. Hours on a CPU; arguments go on to every theme and win:
#   bash scripts/bench.sh --variants pre_ln b2t --repeats 3
#   THEMES="train memory"   which of train, generate, memory, scaling (all)
#   DEVICE=cuda             (cuda where PyTorch finds a GPU, else cpu)
#   OUT=DIR                 relative to the checkout (results/bench)
MALLOC=libc # but for contestants that ask for another
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

find_device='import torch; print("cuda" if torch.cuda.is_available() else "cpu")'
DEVICE="${DEVICE:-$("$VENV_PYTHON" -c "$find_device")}"
OUT="${OUT:-results/bench}"
cd "$ROOT" # so that the reports name no other folder
mkdir -p "$OUT"

if [ "$DEVICE" = cpu ]; then
    train=(--precision fp32 bf16)
    scaling=(--tokens 8x32) # what 100 layers leave room for
else
    train=(--precision fp32 bf16 fp16 --layers 6 18 --dims base big)
    scaling=(--precision bf16)
fi
for theme in ${THEMES:-train generate memory scaling}; do
    case "$theme" in
        train) own=("${train[@]}") ;;
        generate) own=(--precision fp32 bf16 int8) ;;
        memory) own=(--layers 6 18) ;;
        scaling) own=("${scaling[@]}") ;;
        *) die "there is no theme $theme: valid in THEMES are train, generate, memory and scaling" ;;
    esac
    files="$OUT/$theme-${DEVICE/:/}-$(date +%F)"
    if [ "$theme" = scaling ]; then own+=(--picture "$files.png"); fi
    "$VENV_PYTHON" -m fairseq_residuals bench "$theme" --device "$DEVICE" "${own[@]}" "$@" \
        --csv "$files.csv" --markdown "$files.md"
done
