#!/usr/bin/env bash
# Table 8: IWSLT14 De-En, schedules. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce resi_dual/table8 "$@"
