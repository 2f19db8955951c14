#!/usr/bin/env bash
# Sets everything up and runs the demo: three 18-layer Transformers trained on English-German text and compared, in
# about eight minutes on two free cores. --help lists what can be changed; what is finished is reused the next time.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec "$VENV_PYTHON" -m fairseq_residuals.lab.recipes.demo --out "$ROOT/demo_out" "$@"
