#!/usr/bin/env bash
# Sets everything up and reproduces a table: scripts/EXPERIMENT/TABLE.sh are links to this file, which reads its own name.
# --dry-run prints every command and runs none; --help lists the rest. `fairseq-residuals table` lists the tables.
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$HERE/../setup.sh"
exec fairseq-residuals reproduce "$(basename "$HERE")/$(basename "${BASH_SOURCE[0]}" .sh)" "$@"
