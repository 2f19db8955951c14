#!/usr/bin/env bash
# README of takase/b2t_connection at HEAD: WMT En-De, 18L-18L, the README's recipe. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/readme "$@"
