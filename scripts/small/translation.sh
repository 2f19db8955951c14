#!/usr/bin/env bash
# Sets everything up and runs the small twin of b2t/table1 (English to German) on the CPU.
# --help lists what can be changed; what is finished is reused the next time.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec "$VENV_PYTHON" -m fairseq_residuals.lab.recipes.synthetic_tasks translation --out "$ROOT/small_out" "$@"
