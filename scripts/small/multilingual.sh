#!/usr/bin/env bash
# Sets everything up and runs the small twin of resi_dual/table4 (one model between English and three languages) on the CPU.
# --help lists what can be changed; what is finished is reused the next time.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec "$VENV_PYTHON" -m fairseq_residuals.lab.recipes.synthetic_tasks multilingual --out "$ROOT/small_out" "$@"
