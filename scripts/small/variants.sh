#!/usr/bin/env bash
# Sets everything up and compares all variants on the data of translation.sh, 18L-18L, each at the best of several learning
# rates with three seeds, on the CPU; hours, but what is finished is kept whenever it is stopped. --help lists what can be
# changed, --show prints the table of what is finished.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec "$VENV_PYTHON" -m fairseq_residuals.lab.recipes.synthetic_tasks.variants --out "$ROOT/small_out" "$@"
