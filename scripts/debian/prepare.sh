#!/usr/bin/env bash
# Sets everything up and prepares debian: prepare.sh OUT [--variant NAME] [--workers N] ...; --help lists the rest.
# The files come from the mirror that apt names; --mirror DIR|URL names another. --sources lists files and variants.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec "$VENV/bin/fairseq-residuals" prepare debian "$@"
