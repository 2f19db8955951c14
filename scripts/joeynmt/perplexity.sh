#!/usr/bin/env bash
# ppl_plot/ppl_table.csv: Validation perplexity against updates, De-En. See --help and --dry-run.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
exec fairseq-residuals reproduce joeynmt/perplexity "$@"
