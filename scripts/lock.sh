#!/usr/bin/env bash
# Writes requirements.lock anew from pyproject.toml: what is needed, in which version, with the SHA-256 of every file of
# that version. Versions stay what they are where pyproject.toml still allows them.
#   bash scripts/lock.sh                           after a change of pyproject.toml
#   bash scripts/lock.sh --upgrade                 the newest versions that pyproject.toml allows
#   bash scripts/lock.sh --upgrade-package NAME    the newest version of one package
# PYTHON (default: the first of python3.11 to 3.14) runs uv, whatever its version: versions are chosen for Python
# 3.11, the oldest that is served, and then checked for the newer ones. Commit the result after scripts/test.sh has
# passed on every version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lock_lines.sh
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

if [ -z "${PYTHON:-}" ]; then
    for PYTHON in python3.11 python3.12 python3.13 python3.14; do
        "$PYTHON" -c '' >/dev/null 2>&1 && break # a pyenv shim may be there and not run
    done
fi
"$PYTHON" -m venv "$work/venv"
python="$work/venv/bin/python"
lock_lines requirements.lock uv >"$work/uv.lock"
"$python" -m pip install --quiet --require-hashes --no-deps -r "$work/uv.lock"
compile() { "$work/venv/bin/uv" --no-config pip compile --quiet --no-annotate --no-header --python-platform linux "$@"; }

# fairseq's own requirements ask for hydra and omegaconf of 2021, and for torchaudio, which modern_fairseq replaces;
# only subword-nmt's tests import mock.
"$python" - >"$work/overrides.txt" <<'PY'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
groups = [project["dependencies"], *project["optional-dependencies"].values()]
print(*(r for group in groups for r in group if r.startswith(("hydra-core", "omegaconf"))), sep="\n")
print("torchaudio ; sys_platform == 'never'", "mock ; sys_platform == 'never'", sep="\n")
PY
{
    echo fairseq==0.12.2
    grep "^torch==" requirements.lock # which build of it is installed is the user's choice, so a new version is, too
    printf '%s\n' "${BUILD_TOOLS[@]}"
} >"$work/direct.txt"
grep -oE '^[a-z0-9-]+==[^ ]+' requirements.lock >"$work/pins.txt"
compile --python-version 3.11 --all-extras --override "$work/overrides.txt" "$@" \
    --output-file "$work/pins.txt" pyproject.toml "$work/direct.txt" >/dev/null
# torch's CUDA build brings these in versions of its own
grep -vE '^(nvidia-[a-z0-9-]+|cuda-[a-z-]+|triton|torch)==' "$work/pins.txt" >"$work/hashed.txt"

# these come as source and are built: fairseq, antlr4 and rouge-score always, editdistance from Python 3.13 on
grep -vE '^(fairseq|antlr4-python3-runtime|rouge-score|editdistance)==' "$work/hashed.txt" >"$work/wheels.txt"
for version in 3.11 3.12 3.13 3.14; do
    compile --no-deps --no-build --python-version "$version" "$work/wheels.txt" >/dev/null
done

{
    echo "# Written by scripts/lock.sh; installed by scripts/setup.sh. torch has no hashes: it is built for CPUs and for"
    echo "# several versions of CUDA, and which of these builds is installed is the user's choice."
    { grep '^torch==' requirements.lock; compile --no-deps --python-version 3.11 --generate-hashes "$work/hashed.txt"; } |
        "$python" -c 'import re, sys
pins = re.findall(r"^\S.*(?:\n .*)*", sys.stdin.read(), re.M)
print("\n".join(sorted(pins, key=lambda pin: pin.partition("==")[0])))'
} >"$work/requirements.lock"
mv "$work/requirements.lock" requirements.lock
echo "lock: wrote requirements.lock: $(grep -c '^[a-z]' requirements.lock) packages, $(grep -c sha256 requirements.lock) hashes" >&2
