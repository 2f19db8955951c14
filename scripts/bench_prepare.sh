#!/usr/bin/env bash
# Measures what preparing parallel text costs, on synthetic corpora of 0.1, 1 and 4 million pairs: seconds, pairs per second
# and peak memory by step. --lines N ... chooses other sizes, --csv FILE keeps the table.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec "$VENV_PYTHON" -m fairseq_residuals.lab.bench.preparation "$@"
