"""Compute label-smoothed cross entropy without ever holding the scores of all words at all positions.

    p = softmax(x Wᵀ),   e = ε / (V - 1)                            features x (N, C), weight W (V, C), target y (N,)
    loss = Σ_n (1 - ε - e) (-log p[n, y_n]) + e Σ_v (-log p[n, v])

The largest tensors of a translation model are not its activations but its scores over the vocabulary, of which
fairseq's criterion holds four at a time: scores, log-probabilities, and the gradients of both. Here projection and loss
are computed for a chunk of positions at a time. The loss is the end of the graph, so the gradients of x and W are
computed with it. The numbers are fairseq's up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SCORES_AT_A_TIME, SCORES_ON_GPU, POSITIONS_AT_A_TIME = 2**22, 2**24, 1024
ROWS_AT_A_TIME = 32
"""The rows of a chunk whose scores become log-probabilities in their place at a time."""
PRESCALE = {torch.float16: 16.0}
"""Factor on the gradients until the loss scale arrives, which in training in fp16 is in the backward pass; a larger
factor could overflow where all positions of a chunk have one target."""


class Sums(NamedTuple):
    """Scalars, over all positions."""

    loss: Tensor
    nll: Tensor
    """Negative log-likelihood: the loss without label smoothing."""
    correct: Tensor
    """Number of positions at which the target has the highest score; 0 if they were not to be counted."""


class LossAndGradients(NamedTuple):
    """The sums, and the gradients of the loss times ``prescale``."""

    sums: Sums
    grad_features: Tensor | None
    """(N, C)"""
    grad_weight: Tensor | None
    """(V, C), in single precision."""
    prescale: float


def chunked_cross_entropy(
    features: Tensor, weight: Tensor, target: Tensor, epsilon: float, *, count_correct: bool = False
) -> Sums:
    """Compute the loss of a projection in chunks; its gradient can be taken once.

    Args:
        features: (N, C), the input of the output projection.
        weight: (V, C), the projection's matrix.
        target: (N,), words.
        epsilon: the part of the probability that label smoothing spreads over the other words.
        count_correct: whether to count where the target has the highest score.
    """
    features = features.to(weight.dtype)  # under autocast, a projection in half precision makes them half
    if not torch.is_grad_enabled():  # an autograd function is not told
        features, weight = features.detach(), weight.detach()
    return Sums(*_ChunkedCrossEntropy.apply(features, weight, target, epsilon, count_correct))


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, target: Tensor, epsilon: float, count_correct: bool
    ) -> Sums:
        sums, *gradients, ctx.prescale = loss_and_gradients(
            features, weight, target, epsilon, count_correct=count_correct, need=ctx.needs_input_grad[:2]
        )
        # not saved for backward, so that they can be scaled in place: two of the largest tensors there are
        ctx.gradients = gradients
        ctx.dtype = features.dtype
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(sums.nll, sums.correct)
        return sums

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradient of a chunked loss can be taken once only")
        scale, gradients, ctx.gradients = grad_loss / ctx.prescale, ctx.gradients, None
        scaled = (None if grad is None else grad.float().mul_(scale).to(ctx.dtype) for grad in gradients)
        return *scaled, None, None, None


@torch.no_grad()
def loss_and_gradients(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    epsilon: float,
    *,
    count_correct: bool,
    padding: Tensor | None = None,
    need: tuple[bool, bool] = (True, True),
) -> LossAndGradients:
    """Compute the loss with both gradients, of (N, C), (V, C), (N,).

    Args:
        features, weight, target, epsilon, count_correct: as in :func:`chunked_cross_entropy`.
        padding: (N,), True where there is no target; None: nowhere.
        need: whether to compute the gradient of features, and of weight.
    """
    words, prescale = len(weight), PRESCALE.get(features.dtype, 1.0)
    spread = epsilon / (words - 1)
    on_target = 1 - epsilon - spread
    # sums over many chunks, hence in single precision
    grad_features = torch.empty_like(features) if need[0] else None
    grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need[1] else None
    nll, smooth = features.new_zeros((2,), dtype=torch.float32)
    correct = target.new_zeros(())
    scores_at_a_time = SCORES_AT_A_TIME if features.device.type == "cpu" else SCORES_ON_GPU
    size = min(POSITIONS_AT_A_TIME, max(1, scores_at_a_time // words))
    for start in range(0, len(features), size):
        chunk = slice(start, start + size)
        x, y = features[chunk], target[chunk, None]
        no_target = None if padding is None else padding[chunk, None]
        scores = x @ weight.t()
        if count_correct:
            hits = scores.argmax(-1, keepdim=True).eq(y)
            correct = correct + (hits if no_target is None else hits & ~no_target).sum()
        log_probs = _log_softmax_(scores)
        del scores
        nll = nll - _zero_rows_(log_probs.gather(-1, y), no_target).sum()
        if epsilon:
            terms = log_probs if no_target is None else _zero_rows_(log_probs.sum(-1, keepdim=True), no_target)
            smooth = smooth - terms.sum()
        if grad_features is None and grad_weight is None:
            continue
        # softmax minus the smoothed target distribution, in the memory of the scores
        grad_scores = log_probs.exp_()
        if epsilon or prescale != 1:
            shift = grad_scores.new_full((), -spread * prescale)
            torch.add(shift, grad_scores, alpha=(on_target + words * spread) * prescale, out=grad_scores)
        grad_scores.scatter_add_(-1, y, grad_scores.new_full((), -on_target * prescale).expand_as(y))
        grad_scores = _zero_rows_(grad_scores.to(features.dtype), no_target)
        if grad_features is not None:
            torch.mm(grad_scores, weight, out=grad_features[chunk])
        if grad_weight is not None and grad_scores.dtype == torch.float32:
            grad_weight.addmm_(grad_scores.t(), x)
        elif grad_weight is not None:
            grad_weight += grad_scores.t() @ x
    sums = Sums(on_target * nll + spread * smooth, nll, correct)
    return LossAndGradients(sums, grad_features, grad_weight, prescale)


def _log_softmax_(scores: Tensor) -> Tensor:
    """Return log-probabilities in single precision, (N, V) -> (N, V), on a CPU in place of scores in that precision."""
    if scores.dtype != torch.float32 or scores.device.type != "cpu":
        return scores.log_softmax(-1, dtype=torch.float32)
    for rows in scores.split(ROWS_AT_A_TIME):
        rows.copy_(rows.log_softmax(-1))
    return scores


def _zero_rows_(x: Tensor, rows: Tensor | None) -> Tensor:
    """Set some rows of x to zero in place."""
    return x if rows is None else x.masked_fill_(rows, 0)
