#!/usr/bin/env bash
# A language model of the descriptions of Debian packages. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce debian/language_model "$@"
