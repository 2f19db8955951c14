#!/usr/bin/env bash
# Figure 5 of the B2T paper: cosine similarity between the outputs of the layers of trained 6L-6L models.
# The paper: Table 1's models, WMT En-De: give checkpoints of `scripts/b2t/table1.sh`; `fairseq-residuals similarity --data`
# looks at them on a corpus. Small: DEPTH (default 6) layers.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small checkpoints/checkpoint_last.pt "${DEPTH:-6}" post_ln pre_ln b2t
fairseq-residuals similarity --checkpoint "${FILES[@]}" --out "$OUT" --name "$FIGURE"
