#!/usr/bin/env bash
# Sets everything up and prepares a corpus: prepare.sh OUT [--variant NAME] [--workers N] ...; --help lists the rest.
# scripts/CORPUS/prepare.sh are links to this file, which reads its own folder's name.
# MIRROR=DIR takes the files from a local folder; --sources says which files are needed, and from where.
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$HERE/../setup.sh"
exec "$VENV/bin/fairseq-residuals" prepare "$(basename "$HERE")" "$@"
