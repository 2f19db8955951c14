#!/usr/bin/env bash
# Figure 4 and Table 5 of the DLCL paper: generation speed against the depth of the encoder and of the decoder, as a table.
# The paper (--paper): DLCL (Pre-LN), 512/2048/8, 32768 words, batches of 32 sentences, beam 4; on the GPU that is here.
# (Its Table 5 is about Pre-LN; VARIANTS="dlcl_pre pre_ln" times both.) Small: 128/256/4, 1000 words, on the CPU.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
FIGURE="$(basename "$0" .sh)"
OUT="${OUT:-figures}"
if [ "${1:-}" = --paper ]; then
    shift
    size=(--dims 512x2048x8 --vocabulary 32768 --tokens 32x30 --device cuda)
    depths=(6-6 10-6 15-6 20-6 25-6 30-6 6-4 6-8)
else
    size=(--dims 128x256x4 --vocabulary 1000 --tokens 32x20)
    depths=(2-2 6-2 12-2 18-2 2-4 2-6 2-8)
fi
mkdir -p "$OUT"
# shellcheck disable=SC2086
exec fairseq-residuals bench generate --variants ${VARIANTS:-dlcl_pre pre_ln} --beside --layers "${depths[@]}" "${size[@]}" \
    --beam 4 --csv "$OUT/$FIGURE.csv" "$@"
