#!/usr/bin/env bash
# Write the site of all wirings to the folder that is named, or to site/.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec fairseq-residuals site "${1:-site}"
