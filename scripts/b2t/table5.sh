#!/usr/bin/env bash
# Table 5: Speech recognition on LibriSpeech. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce b2t/table5 "$@"
