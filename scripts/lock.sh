#!/usr/bin/env bash
# Writes requirements.lock anew: the newest versions that pyproject.toml allows, with everything they need.
# PYTHON (default: python3.11) has to be a Python 3.11, the oldest version served: what supports it supports the
# newer ones too, which is then checked. Commit the result after scripts/test.sh has passed on every version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3.11}" -m venv "$work/venv"
python="$work/venv/bin/python"
"$python" -c 'import sys; sys.exit("lock: error: PYTHON has to be a Python 3.11" if sys.version_info[:2] != (3, 11) else 0)'

"$python" - >"$work/direct.txt" <<'PY'
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
for requirements in [project["dependencies"], *project["optional-dependencies"].values()]:
    print("\n".join(r for r in requirements if not r.startswith(project["name"])))
print("torch==2.13.0", "cython", "setuptools", "wheel", sep="\n")  # the last three build fairseq
PY
"$python" -m pip install --quiet --dry-run --report "$work/report.json" --ignore-installed -r "$work/direct.txt"

"$python" - "$work/report.json" >"$work/requirements.lock" <<'PY'
import json, re, sys
pins = {"fairseq": "0.12.2"}  # its own metadata cannot be resolved
for item in json.load(open(sys.argv[1]))["install"]:
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    # torch's CUDA build brings its own libraries; subword-nmt asks for mock, which only its tests import
    if not re.match(r"nvidia-|cuda-|triton$|mock$", name):
        pins[name] = item["metadata"]["version"].partition("+")[0]
print("# Written by scripts/lock.sh; installed by scripts/setup.sh.")
print("\n".join(f"{name}=={pins[name]}" for name in sorted(pins)))
PY

# these come as source and are built: fairseq, antlr4 and rouge-score always, editdistance from Python 3.13 on
grep -vE '^(fairseq|antlr4-python3-runtime|rouge-score|editdistance)==' "$work/requirements.lock" >"$work/wheels.txt"
for version in 3.12 3.13; do
    "$python" -m pip install --quiet --dry-run --ignore-installed --no-deps --only-binary=:all: \
        --python-version "$version" --target "$work/target" -r "$work/wheels.txt"
done
mv "$work/requirements.lock" requirements.lock
echo "lock: wrote requirements.lock" >&2
