#!/usr/bin/env bash
# Sets everything up and prepares debian: prepare.sh OUT [--variant NAME] [--workers N] ...; --help lists the rest.
# MIRROR=DIR takes the files from a local folder; --sources says which files are needed, and from where.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec "$VENV/bin/fairseq-residuals" prepare debian "$@"
