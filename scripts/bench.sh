#!/usr/bin/env bash
# Measures speed and memory of every variant beside stock fairseq and other libraries (`fairseq-residuals bench`), and
# writes THEME-DEVICE-DATE.md and .csv. Hours on a CPU; arguments go on to every theme and win:
#   bash scripts/bench.sh --variants pre_ln b2t --repeats 3
#   THEMES="train memory"   which of train, generate (both)
#   DEVICE=cuda             (cuda where PyTorch finds a GPU, else cpu)
#   OUT=DIR                 relative to the checkout (results/bench)
MALLOC=libc # but for entries that ask for another
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

find_device='import torch; print("cuda" if torch.cuda.is_available() else "cpu")'
DEVICE="${DEVICE:-$("$VENV_PYTHON" -c "$find_device")}"
OUT="${OUT:-results/bench}"
cd "$ROOT" # so that the reports name no other folder
mkdir -p "$OUT"

train=(--precision fp32 bf16)
if [ "$DEVICE" != cpu ]; then train+=(fp16 --layers 6 18 --dims base big); fi
for theme in ${THEMES:-train generate}; do
    case "$theme" in
        train) own=("${train[@]}") ;;
        generate) own=(--precision fp32 bf16 int8) ;;
        *) die "there is no theme $theme: valid in THEMES are train and generate" ;;
    esac
    files="$OUT/$theme-${DEVICE/:/}-$(date +%F)"
    "$VENV_PYTHON" -m fairseq_residuals bench "$theme" --device "$DEVICE" "${own[@]}" "$@" \
        --csv "$files.csv" | tee "$files.md"
done
