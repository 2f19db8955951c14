#!/usr/bin/env bash
# Tests and measures on a GPU, in order of worth and in pieces of at most nine minutes; --help lists what can be changed.
# What is finished is not done again by the next call.
#   SETUP=no   use the Python that PYTHON names (python3), with what is installed there, and install nothing
if [ "${SETUP:-yes}" = no ]; then
    set -euo pipefail
    ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
    VENV_PYTHON="${PYTHON:-python3}"
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
else
    . "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
fi
exec "$VENV_PYTHON" -m fairseq_residuals.experiments.device_session "$@"
