#!/usr/bin/env bash
# Creates or reuses a virtual environment and installs the pinned packages and this checkout into it.
# Other scripts source this file; it leaves them ROOT, VENV, VENV_PYTHON, and a PATH that starts with the environment.
#   VENV=DIR      the environment (default: .venv in the checkout)
#   PYTHON=PROG   the interpreter that creates it (default: the first usable of python3.11 to 3.14, python3)
#   MALLOC=libc   memory from the C library also where tcmalloc is installed (default: tcmalloc)
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="${VENV:-$ROOT/.venv}"
case "$VENV" in /*) ;; *) VENV="$PWD/$VENV" ;; esac
VENV_PYTHON="$VENV/bin/python"
LOCK="$ROOT/requirements.lock"
STAMP="$VENV/fairseq_residuals.stamp"

. "$ROOT/scripts/lock_lines.sh"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# Prints why an interpreter cannot serve, or nothing. Runs on any Python, hence no modern syntax.
why_unusable() {
    "$1" - 2>/dev/null <<'PY' || printf 'it is not an interpreter that runs'
import os, shutil, sys
name = "%s (Python %d.%d)" % (sys.executable, sys.version_info[0], sys.version_info[1])
if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    print("%s is too old, or too new for the pinned packages: Python 3.11 to 3.14 are served" % name)
    sys.exit()
import importlib.util, sysconfig
if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
    print("%s lacks the venv or ensurepip module (Debian and Ubuntu: install python3-venv)" % name)
elif not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("%s lacks its C headers (Debian and Ubuntu: install python3-dev)" % name)
else:
    for variable in ("CC", "CXX"):
        program = (os.environ.get(variable) or sysconfig.get_config_var(variable) or "").split()
        if not program or shutil.which(program[0]) is None:
            print("fairseq is built from source and the C/C++ compiler %r that %s uses is not installed: "
                  "install it, or name another in CC and CXX" % (" ".join(program[:1]), name))
            break
PY
}

choose_python() {
    local candidate reason first_reason=""
    for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
        # A pyenv shim is on the PATH even where the version behind it is not active: run it to find out.
        "$candidate" -c '' >/dev/null 2>&1 || continue
        reason="$(why_unusable "$candidate")"
        if [ -z "$reason" ]; then
            PYTHON="$candidate"
            return
        fi
        first_reason="${first_reason:-$reason}"
    done
    die "${first_reason:-no Python found: install Python 3.11 to 3.14, or name one in PYTHON}"
}

python_version() {
    "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null || printf 'not an interpreter that runs'
}

make_venv() {
    if [ -e "$VENV" ] && [ ! -f "$VENV/pyvenv.cfg" ] && [ -n "$(ls -A "$VENV")" ]; then
        die "$VENV exists and is not a virtual environment: choose another in VENV, or remove it"
    fi
    if [ -n "${PYTHON:-}" ]; then
        local reason
        reason="$(why_unusable "$PYTHON")"
        [ -z "$reason" ] || die "PYTHON=$PYTHON cannot be used: $reason"
    else
        choose_python
    fi
    say "creating $VENV with Python $(python_version "$PYTHON")"
    "$PYTHON" -m venv "$VENV" >&2 || die "$PYTHON could not create $VENV"
}

# Everything that decides what is installed.
stamp_key() {
    "$VENV_PYTHON" - "$ROOT" "$LOCK" "$ROOT/pyproject.toml" "$ROOT/setup.py" <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(repr((sys.version, sys.argv[1])).encode())
for path in sys.argv[2:]:
    digest.update(pathlib.Path(path).read_bytes())
print(digest.hexdigest())
PY
}

pip_install() {
    (cd "$ROOT" && PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV_PYTHON" -m pip install "$@" >&2) ||
        die "pip could not install the pinned packages: see its message above"
}

install_packages() {
    local torch_pin again=()
    torch_pin="$(grep -E '^torch==' "$LOCK")"
    # Whatever an interrupted installation left behind is written again, complete or not.
    if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = incomplete ]; then
        say "the previous installation did not finish: installing every package again"
        again=(--ignore-installed)
    fi
    echo incomplete >"$STAMP"
    # Every file has to have one of the hashes of the lock. Without dependencies: fairseq's metadata asks for hydra and
    # omegaconf of 2021, which do not run on current Python.
    local hashed=(--quiet --require-hashes --no-deps ${again[@]+"${again[@]}"})
    say "installing the packages of requirements.lock, whose hashes are checked (building fairseq takes about a minute)"
    lock_lines "$LOCK" "${BUILD_TOOLS[@]}" >"$VENV/requirements.txt"
    pip_install "${hashed[@]}" --only-binary=:all: -r "$VENV/requirements.txt"
    grep -v '^torch==' "$LOCK" >"$VENV/requirements.txt"
    # Where fairseq's build finds torch, it compiles extensions for it, which nothing here needs.
    mkdir -p "$VENV/no_torch"
    echo 'raise ImportError("hidden from the build of fairseq")' >"$VENV/no_torch/torch.py"
    PYTHONPATH="$VENV/no_torch${PYTHONPATH:+:$PYTHONPATH}" \
        pip_install "${hashed[@]}" --no-build-isolation -r "$VENV/requirements.txt"
    rm -r "$VENV/requirements.txt" "$VENV/no_torch"
    # Its CUDA build brings libraries that the lock, which serves CPUs too, does not list. Which build of torch is
    # installed is the user's choice, so the lock has no hashes for it.
    say "installing $torch_pin and its dependencies"
    if [ -n "${again[*]-}" ]; then pip_install --no-deps "${again[@]}" "$torch_pin"; fi
    pip_install --no-warn-conflicts "$torch_pin"
    say "installing this checkout in editable mode"
    pip_install --quiet --no-deps --no-build-isolation -e "$ROOT"
}

if ! "$VENV_PYTHON" -m pip --version >/dev/null 2>&1; then
    make_venv
elif [ -n "${PYTHON:-}" ]; then
    wanted="$(python_version "$PYTHON")"
    present="$(python_version "$VENV_PYTHON")"
    [ "$wanted" = "$present" ] ||
        die "$VENV has Python $present and PYTHON=$PYTHON is $wanted: choose another VENV, or remove it"
fi

key="$(stamp_key)"
if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$key" ]; then
    say "$VENV is up to date"
else
    reason="$(why_unusable "$VENV_PYTHON")"
    [ -z "$reason" ] || die "$reason"
    install_packages
    echo "$key" >"$STAMP"
    say "$VENV is ready"
fi

export VENV VENV_PYTHON PATH="$VENV/bin:$PATH"
# On a CPU, training needs less memory with tcmalloc, and beam search less time (results/bench/README.md).
case "${MALLOC:-tcmalloc}" in
    tcmalloc)
        find_tcmalloc='import ctypes.util; print(ctypes.util.find_library("tcmalloc_minimal") or "")'
        tcmalloc="${LD_PRELOAD:-$("$VENV_PYTHON" -c "$find_tcmalloc")}"
        if [ -n "$tcmalloc" ]; then export LD_PRELOAD="$tcmalloc"; fi
        ;;
    libc) ;;
    *) die "MALLOC=$MALLOC is not known: valid are tcmalloc and libc" ;;
esac
# Caches that would otherwise land in the home directory or in /tmp.
export MPLCONFIGDIR="${MPLCONFIGDIR:-$VENV/cache/matplotlib}"
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$VENV/cache/torchinductor}"
