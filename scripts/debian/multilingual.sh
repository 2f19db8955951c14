#!/usr/bin/env bash
# One model from English into nine languages, on descriptions of Debian packages. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce debian/multilingual "$@"
