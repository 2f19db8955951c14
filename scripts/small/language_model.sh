#!/usr/bin/env bash
# Sets everything up and runs the small twin of b2t/table4 (the manual of Python) on the CPU.
# --help lists what can be changed; what is finished is reused the next time.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec "$VENV_PYTHON" -m fairseq_residuals.lab.recipes.synthetic_tasks language_model --out "$ROOT/small_out" "$@"
