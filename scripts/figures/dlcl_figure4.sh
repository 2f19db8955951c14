#!/usr/bin/env bash
# Figure 4 and Table 5 of the DLCL paper: generation speed against the depth of the encoder and of the decoder.
# The paper (--paper): DLCL (Pre-LN), 512/2048/8, 32768 words, batches of 32 sentences, beam 4; on the GPU that is here.
# (Its Table 5 is about Pre-LN; VARIANTS="dlcl_pre pre_ln" times both.) Small: 128/256/4, 1000 words, on the CPU.
. "$(dirname "${BASH_SOURCE[0]}")/../setup.sh"
FIGURE="$(basename "$0" .sh)"
OUT="${OUT:-figures}"
if [ "${1:-}" = --paper ]; then
    shift
    size=(--dim 512 --ffn-dim 2048 --heads 8 --vocabulary 32768 --target-tokens 30 --share-all-embeddings --device cuda)
    depths=(--encoder-layers 6 10 15 20 25 30 --decoder-layers 4 6 8 --fixed 6)
else
    size=(--dim 128 --ffn-dim 256 --heads 4 --vocabulary 1000 --target-tokens 20)
    depths=(--encoder-layers 2 6 12 18 --decoder-layers 2 4 6 8 --fixed 2)
fi
# shellcheck disable=SC2086
exec fairseq-residuals speed --variants ${VARIANTS:-dlcl_pre pre_ln} "${size[@]}" "${depths[@]}" --sentences 32 --beam 4 \
    --out "$OUT" --name "$FIGURE" "$@"
