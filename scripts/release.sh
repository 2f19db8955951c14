#!/usr/bin/env bash
# Writes what a release consists of to dist/: wheel, source archive, and the SHA-256 of each.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"
[ -z "$(git status --porcelain)" ] || die "the working tree has changes: a release is made of a commit"
rm -rf build dist
for hook in build_sdist build_wheel; do
    "$VENV_PYTHON" -c "import setuptools.build_meta as backend; backend.$hook('dist')" >/dev/null
done
(cd dist && sha256sum -- * >SHA256SUMS)
say "dist/ holds $(ls dist | tr '\n' ' ')"
