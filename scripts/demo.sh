#!/usr/bin/env bash
# Sets everything up and runs the demo: three 18-layer Transformers trained on English-German text and compared, in
# 8 to 25 minutes on two free cores; with --quick on sentences to copy, in about two. What is finished is reused the next
# time. Further options are those of `fairseq-residuals compare`.
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
task=(--task cldr --score)
if [ "${1:-}" = --quick ]; then
    shift
    task=(--task copy --depth 18 --updates 200)
fi
# one run more than cores: three runs on two cores end after one and a half times what one takes alone
exec fairseq-residuals compare post_ln pre_ln b2t "${task[@]}" --rates 0.001 --seeds 1 --baseline-seeds 1 --keep-checkpoints \
    --jobs $(($(nproc) + 1)) --out "$ROOT/demo_out" "$@"
