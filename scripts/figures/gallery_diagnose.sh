#!/usr/bin/env bash
# `fairseq-residuals diagnose` of a deep Post-LN that does not learn; of other logs: gallery_diagnose.sh LOG. DEPTH: default 18.
. "$(dirname "${BASH_SOURCE[0]}")/trained.sh"
small 'train.*.log' "${DEPTH:-18}" post_ln pre_ln --override model.log_residual_stats=10
data=()
[ "$GIVEN" != 0 ] || data=(--data "$OUT/$FIGURE-${DEPTH:-18}/data/copy/data-bin")
fairseq-residuals diagnose "${FILES[0]}" "${data[@]}" --out "$OUT" --name "$FIGURE"
