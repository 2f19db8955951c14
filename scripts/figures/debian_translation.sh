#!/usr/bin/env bash
# Validation NLL of all methods at 18L-18L on text that people wrote: English to Italian, descriptions of Debian's packages.
# The recipes (--paper): the rows 18L-18L/128 of debian/translation; WIDTH=512 those of 512 channels. Runs that
# scripts/debian/translation.sh has made: debian_translation.sh 'runs/debian/translation/18l_*_128/*/seed*/train.*.log'
# Small: LAYERS (default 6) layers in each stack, synthetic sentences.
. "$(dirname "${BASH_SOURCE[0]}")/runs.sh"
[ "${WIDTH:-128}" = 512 ] && END="" || END=_128
methods "debian/translation/18l_METHOD$END" post_ln pre_ln dlcl admin t_fixup realformer deepnet b2t resi_dual
draw --metric nll_loss --subset valid
