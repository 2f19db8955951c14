#!/usr/bin/env bash
# Synopses of Debian packages from their descriptions. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce debian/headlines "$@"
