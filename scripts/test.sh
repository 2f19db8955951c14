#!/usr/bin/env bash
# Sets everything up and runs the tests; arguments go on to pytest (a later -n replaces the one given here).
MALLOC=libc # the same on every machine; tests of memory are about it
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # one thread per worker: more only compete for the same cores
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would each compile all sources
# a worker keeps to files, whose tests share what was computed once, and takes of the other's when it has none left
exec "$VENV_PYTHON" -m pytest -n 2 --dist worksteal "$@"
