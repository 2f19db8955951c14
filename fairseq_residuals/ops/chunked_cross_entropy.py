"""Label-smoothed cross entropy that never holds the scores of all words at all positions.

The largest tensors of a translation model are not its activations but its scores over the vocabulary, of which
fairseq's criterion holds four at a time: scores, log-probabilities, and the gradients of both. Here the output
projection and the loss are computed for some positions at a time, and with them, since the loss is the end of the
graph, the gradients of projection and features; padding is left out. The numbers are fairseq's up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

SCORES_AT_A_TIME, SCORES_ON_GPU, POSITIONS_AT_A_TIME = 2**22, 2**24, 1024
ROWS_AT_A_TIME = 32
"""Of a chunk, while scores become log-probabilities in their place."""
BOOST = {torch.float16: 16.0}
"""The loss scale of fp16 training arrives in the backward pass only, so gradients are first made larger by this much; a
larger factor could overflow where all positions of a chunk have one target."""


class Sums(NamedTuple):
    """Scalars, over all positions."""

    loss: Tensor
    nll: Tensor
    correct: Tensor
    """Positions at which the target has the highest score; 0 if they were not to be counted."""


class Ends(NamedTuple):
    """The sums, and the gradients of the loss."""

    sums: Sums
    of_features: Tensor | None
    """(N, C), times ``boost``."""
    of_weight: Tensor | None
    """(V, C), times ``boost``, in single precision."""
    boost: float


def _log_softmax_(scores: Tensor) -> Tensor:
    """(N, V) -> (N, V) in single precision, on a CPU in place if ``scores`` are."""
    if scores.dtype != torch.float32 or scores.device.type != "cpu":
        return scores.log_softmax(-1, dtype=torch.float32)
    for rows in scores.split(ROWS_AT_A_TIME):
        rows.copy_(rows.log_softmax(-1))
    return scores


@torch.no_grad()
def loss_and_gradients(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    *,
    count: bool,
    padding: Tensor | None = None,
    need: tuple[bool, bool] = (True, True),
) -> Ends:
    """(N, C), (V, C), (N,) -> the loss with both gradients.

    Args:
        padding: (N,), True where there is no target; None: nowhere.
        need: which of the gradients to compute.
    """
    words, boost = len(weight), BOOST.get(features.dtype, 1.0)
    spread = epsilon / (words - 1)
    kept = 1 - epsilon - spread
    # sums over many chunks, hence in fp32
    d_features = torch.empty_like(features) if need[0] else None
    d_weight = torch.zeros_like(weight, dtype=torch.float32) if need[1] else None
    nll, smooth = features.new_zeros((2,), dtype=torch.float32)
    correct = target.new_zeros(())
    scores_at_a_time = SCORES_AT_A_TIME if features.device.type == "cpu" else SCORES_ON_GPU
    size = min(POSITIONS_AT_A_TIME, max(1, scores_at_a_time // words))
    for start in range(0, len(features), size):
        part, wanted = features[start : start + size], target[start : start + size, None]
        none = None if padding is None else padding[start : start + size, None]
        scores = part @ weight.t()
        if count:
            right = scores.argmax(-1, keepdim=True).eq(wanted)
            correct = correct + (right if none is None else right & ~none).sum()
        log_probs = _log_softmax_(scores)
        del scores
        nll = nll - _without(none, log_probs.gather(-1, wanted)).sum()
        if epsilon:
            smooth = smooth - (log_probs if none is None else _without(none, log_probs.sum(-1, keepdim=True))).sum()
        if d_features is None and d_weight is None:
            continue
        d_scores = log_probs.exp_()
        if epsilon or boost != 1:
            shift = d_scores.new_full((), -spread * boost)
            torch.add(shift, d_scores, alpha=(kept + words * spread) * boost, out=d_scores)
        d_scores.scatter_add_(-1, wanted, d_scores.new_full((), -kept * boost).expand_as(wanted))
        d_scores = _without(none, d_scores.to(features.dtype))
        if d_features is not None:
            torch.mm(d_scores, weight, out=d_features[start : start + size])
        if d_weight is not None and d_scores.dtype == torch.float32:
            d_weight.addmm_(d_scores.t(), part)
        elif d_weight is not None:
            d_weight += d_scores.t() @ part
    return Ends(Sums(kept * nll + spread * smooth, nll, correct), d_features, d_weight, boost)


def _without(none: Tensor | None, x: Tensor) -> Tensor:
    """``x``, in place, with zeros for some rows."""
    return x if none is None else x.masked_fill_(none, 0)


class _ChunkedLoss(torch.autograd.Function):
    """(N, C), (V, C), (N,) -> :class:`Sums`; both gradients are computed on the way."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, target: Tensor, epsilon: float, count: bool) -> Sums:
        need = ctx.needs_input_grad[:2]
        sums, *gradients, ctx.boost = loss_and_gradients(features, weight, target, epsilon, count=count, need=need)
        # not saved for backward, so that they can be scaled in place: two of the largest tensors there are
        ctx.gradients = gradients
        ctx.dtype = features.dtype
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(sums.nll, sums.correct)
        return sums

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of a chunked loss can be had once")
        scale, gradients, ctx.gradients = d_loss / ctx.boost, ctx.gradients, None
        scaled = (None if d is None else d.float().mul_(scale).to(ctx.dtype) for d in gradients)
        return *scaled, None, None, None


def chunked_loss(features: Tensor, weight: Tensor, target: Tensor, epsilon: float, *, count: bool = False) -> Sums:
    """
    Args:
        features: (N, C), what the output projection is fed.
        weight: (V, C), its matrix.
        target: (N,)
        epsilon: the part of the probability that label smoothing spreads over the other words.
        count: whether to count where the target has the highest score.
    """
    features = features.to(weight.dtype)  # autocast makes them of a projection in half
    if not torch.is_grad_enabled():  # which the function would not learn
        features, weight = features.detach(), weight.detach()
    return Sums(*_ChunkedLoss.apply(features, weight, target, epsilon, count))
