#!/usr/bin/env bash
# Writes what a release consists of to dist/: wheel, source archive, the list of what an installation is made of
# (CycloneDX), and the SHA-256 of each. The same commit gives the same bytes, wherever and whenever.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"
[ -z "$(git status --porcelain)" ] || die "the working tree has changes: a release is made of a commit"
rm -rf build dist
SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)"
export SOURCE_DATE_EPOCH
for hook in build_sdist build_wheel; do
    "$VENV_PYTHON" -c "import setuptools.build_meta as backend; backend.$hook('dist')" >/dev/null
done
"$VENV_PYTHON" scripts/sbom.py >dist/sbom.cdx.json
(cd dist && sha256sum -- * >SHA256SUMS)
say "dist/ holds $(ls dist | tr '\n' ' ')"
