"""``--criterion chunked_label_smoothed_cross_entropy``: :mod:`.chunked_cross_entropy` in fairseq."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fairseq.criterions import label_smoothed_cross_entropy as fairseqs
from fairseq.criterions import register_criterion
from fairseq.models import FairseqEncoderDecoderModel, FairseqMultiModel
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals.plugin.models.fixnorm import NormalizedProjection
from fairseq_residuals.plugin.training.chunked_cross_entropy import (
    LossAndGradients,
    Sums,
    chunked_cross_entropy,
    loss_and_gradients,
)
from fairseq_residuals.wirings.core.errors import UserError


@register_criterion("chunked_label_smoothed_cross_entropy", dataclass=fairseqs.LabelSmoothedCrossEntropyCriterionConfig)
class LabelSmoothedCrossEntropyCriterion(fairseqs.LabelSmoothedCrossEntropyCriterion):  # type: ignore[misc]
    """Compute fairseq's loss, with its flags and its log, without ever holding the scores of all words.

    It is called as fairseq's class is: a checkpoint has the name of its criterion's class, and fairseq resumes by that
    name alone. So a run may change from one to the other.
    """

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss, its sample size, and what is logged.

        Raises:
            UserError: the model's output is no projection by a matrix (adaptive softmax), one loss per position is
                asked for, or PyTorch's DDP would take the projection, which its forward pass does not use, for unused.
        """
        _check(model, reduce)
        target = model.get_targets(sample, None)
        sums = self.sums(model, sample, target)
        sample_size = len(target) if self.sentence_avg else sample["ntokens"]
        logged = {
            "loss": sums.loss.data,
            "nll_loss": sums.nll.data,
            "ntokens": sample["ntokens"],
            "nsentences": len(target),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            total = target[:, self.ignore_prefix_size :].ne(self.padding_idx).sum()
            logged |= {"n_correct": sums.correct.item(), "total": int(total)}
        return sums.loss, sample_size, logged

    def sums(self, model: Any, sample: dict[str, Any], target: Tensor) -> Sums:
        """Return the loss of a batch with target (B, T), and what is logged of it."""
        wanted = target[:, self.ignore_prefix_size :]
        real = wanted.ne(self.padding_idx)
        features = self.features(model, sample["net_input"])[real]
        projection = model.decoder.output_projection
        weight = projection.matrix() if isinstance(projection, NormalizedProjection) else projection.weight
        return chunked_cross_entropy(features, weight, wanted[real], self.eps, count_correct=self.report_accuracy)

    def features(self, model: Callable[..., Any], inputs: dict[str, Any]) -> Tensor:
        """Return what the output projection is fed (B, T, C), at the positions with a target."""
        features: Tensor = model(**inputs, features_only=True)[0]  # the rest holds each layer's output
        return features[:, self.ignore_prefix_size :]

    def loss_and_gradients(self, features: Tensor, weight: Tensor, target: Tensor) -> LossAndGradients:
        """Return the loss of features (B, T, C), a matrix (V, C) and target (B, T), with its gradients.

        Padding stays, so that all shapes are those of the batch.
        """
        wanted = target[:, self.ignore_prefix_size :].flatten()
        padding = wanted.eq(self.padding_idx)
        return loss_and_gradients(
            features.flatten(0, 1), weight, wanted, self.eps, count_correct=self.report_accuracy, padding=padding
        )


def _innermost(model: nn.Module) -> nn.Module:
    inner = getattr(model, "module", None)
    return _innermost(inner) if isinstance(inner, nn.Module) else model


def _check(model: Any, reduce: bool) -> None:
    innermost = _innermost(model)
    projection = getattr(getattr(innermost, "decoder", None), "output_projection", None)
    given = inspect.signature(innermost.forward).parameters
    # fairseq's generic models hand further arguments to their encoders too, which know no features_only
    takes_features_only = (
        type(innermost).forward is not FairseqEncoderDecoderModel.forward
        and not isinstance(innermost, FairseqMultiModel)
        and ("features_only" in given or any(p.kind is p.VAR_KEYWORD for p in given.values()))
    )
    by_matrix = isinstance(projection, nn.Linear | NormalizedProjection) and projection.bias is None
    if projection is None or not (by_matrix and takes_features_only and reduce):
        raise UserError(
            "chunked_label_smoothed_cross_entropy is for models whose output is a projection by a matrix, and for"
            " losses summed over a batch; use --criterion label_smoothed_cross_entropy, or adaptive_loss"
        )
    if (
        any(isinstance(m, DistributedDataParallel) and m.find_unused_parameters for m in model.modules())
        and projection.weight is not model.decoder.embed_tokens.weight
    ):
        raise UserError(
            "chunked_label_smoothed_cross_entropy with --find-unused-parameters needs an output projection that is"
            " shared (--share-decoder-input-output-embed), or --ddp-backend legacy_ddp"
        )
