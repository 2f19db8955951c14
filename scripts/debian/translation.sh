#!/usr/bin/env bash
# English to Italian on descriptions of Debian packages, 6 and 18 layers. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce debian/translation "$@"
