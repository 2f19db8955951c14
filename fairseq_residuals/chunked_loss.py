"""Label-smoothed cross entropy that never holds the scores of all words at all positions.

The largest tensors of a translation model are not its activations but its scores over the vocabulary, of which
fairseq's criterion holds four at a time: scores, log-probabilities, and the gradients of both. Here the output
projection and the loss are computed for some positions at a time, and with them, since the loss is the end of the
graph, the gradients of projection and features; padding is left out. The numbers are fairseq's up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from modern_fairseq.errors import UserError

SCORES_AT_A_TIME, POSITIONS_AT_A_TIME = 2**22, 1024
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


def _log_softmax_(scores: Tensor) -> Tensor:
    """(N, V) -> (N, V) in single precision, in place if ``scores`` are."""
    if scores.dtype != torch.float32:
        return scores.log_softmax(-1, dtype=torch.float32)
    for rows in scores.split(ROWS_AT_A_TIME):
        rows.copy_(rows.log_softmax(-1))
    return scores


class _ChunkedLoss(torch.autograd.Function):
    """(N, C), (V, C), (N,) -> :class:`Sums`; both gradients are computed on the way."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, target: Tensor, epsilon: float, count: bool) -> Sums:
        words, boost = len(weight), BOOST.get(features.dtype, 1.0)
        spread = epsilon / (words - 1)
        kept = 1 - epsilon - spread
        need_features, need_weight, *_ = ctx.needs_input_grad
        # sums over many chunks, hence in fp32
        d_features = torch.empty_like(features) if need_features else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        nll, smooth = features.new_zeros((2,), dtype=torch.float32)
        correct = target.new_zeros(())
        size = min(POSITIONS_AT_A_TIME, max(1, SCORES_AT_A_TIME // words))
        for start in range(0, len(features), size):
            part, wanted = features[start : start + size], target[start : start + size, None]
            scores = part @ weight.t()
            if count:
                correct = correct + scores.argmax(-1, keepdim=True).eq(wanted).sum()
            log_probs = _log_softmax_(scores)
            del scores
            nll = nll - log_probs.gather(-1, wanted).sum()
            if epsilon:
                smooth = smooth - log_probs.sum()
            if d_features is None and d_weight is None:
                continue
            d_scores = log_probs.exp_()
            if epsilon or boost != 1:
                shift = d_scores.new_tensor(-spread * boost)
                torch.add(shift, d_scores, alpha=(kept + words * spread) * boost, out=d_scores)
            d_scores.scatter_add_(-1, wanted, d_scores.new_full((), -kept * boost).expand_as(wanted))
            d_scores = d_scores.to(features.dtype)
            if d_features is not None:
                torch.mm(d_scores, weight, out=d_features[start : start + size])
            if d_weight is not None and d_scores.dtype == torch.float32:
                d_weight.addmm_(d_scores.t(), part)
            elif d_weight is not None:
                d_weight += d_scores.t() @ part
        # not saved for backward, so that they can be scaled in place: two of the largest tensors there are
        ctx.gradients = d_features, d_weight
        ctx.dtype, ctx.boost = features.dtype, boost
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(nll, correct)
        return Sums(kept * nll + spread * smooth, nll, correct)

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


@register_criterion("chunked_label_smoothed_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class ChunkedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):  # type: ignore[misc]
    """``--criterion chunked_label_smoothed_cross_entropy``, with the flags and the log of fairseq's."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """The loss, its sample size, and what is logged.

        Raises:
            UserError: the model's output is no projection by a matrix (adaptive softmax), one loss per position is
                asked for, or PyTorch's DDP would take the projection, which its forward pass does not use, for unused.
        """
        projection = getattr(model.decoder, "output_projection", None)
        if not isinstance(projection, nn.Linear) or projection.bias is not None or not reduce:
            raise UserError(
                "chunked_label_smoothed_cross_entropy is for models whose output is a projection by a matrix, and for"
                " losses summed over a batch; use --criterion label_smoothed_cross_entropy, or adaptive_loss"
            )
        # around each other, with --heartbeat-timeout
        wrappers = [model]
        while isinstance(inner := getattr(wrappers[-1], "module", None), nn.Module):
            wrappers.append(inner)
        if (
            any(isinstance(w, DistributedDataParallel) and w.find_unused_parameters for w in wrappers)
            and projection.weight is not model.decoder.embed_tokens.weight
        ):
            raise UserError(
                "chunked_label_smoothed_cross_entropy with --find-unused-parameters needs an output projection that is"
                " shared (--share-decoder-input-output-embed), or --ddp-backend legacy_ddp"
            )
        features = model(**sample["net_input"], features_only=True)[0]  # the rest holds each layer's output
        target = model.get_targets(sample, None)[:, self.ignore_prefix_size :]
        real = target.ne(self.padding_idx)
        features = features[:, self.ignore_prefix_size :][real]
        sums = chunked_loss(features, projection.weight, target[real], self.eps, count=self.report_accuracy)
        sample_size = len(target) if self.sentence_avg else sample["ntokens"]
        logged = {
            "loss": sums.loss.data,
            "nll_loss": sums.nll.data,
            "ntokens": sample["ntokens"],
            "nsentences": len(target),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            logged |= {"n_correct": sums.correct.item(), "total": int(real.sum())}
        return sums.loss, sample_size, logged


# a checkpoint names the class of its criterion, and fairseq resumes by that class alone
ChunkedLabelSmoothedCrossEntropy.__name__ = LabelSmoothedCrossEntropyCriterion.__name__
