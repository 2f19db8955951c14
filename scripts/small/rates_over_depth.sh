#!/usr/bin/env bash
# Sets everything up and looks for the best learning rate of wirings at several depths, with and without depth_mup, on the
# data of translation.sh, on the CPU; hours, but what is finished is kept whenever it is stopped. --help lists what can be
# changed, --show draws what is finished.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec "$VENV_PYTHON" -m fairseq_residuals.lab.recipes.synthetic_tasks.rates_over_depth --out "$ROOT/small_out" "$@"
