#!/usr/bin/env bash
# Validation NLL of all methods at 18L-18L on text that people wrote: English to Italian, descriptions of Debian's packages.
# Logs that scripts/debian/translation.sh has made:
#   debian_translation.sh runs/debian/translation/18l_*_128/*/seed*/train.*.log
# Small: DEPTH (default 6) layers in each stack, short sentences to copy.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small 'train.*.log' "${DEPTH:-6}" post_ln pre_ln dlcl_post admin t_fixup realformer deepnet b2t resi_dual
draw --metric "$METRIC" --subset valid
