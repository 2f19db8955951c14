"""The criterion ``chunked_label_smoothed_cross_entropy``: :mod:`...ops.chunked_cross_entropy` in fairseq."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.ops.chunked_cross_entropy import (
    LossAndGradients,
    Sums,
    chunked_cross_entropy,
    loss_and_gradients,
)
from fairseq_residuals.utils.optional import import_with_performance

cuda_graph_step = import_with_performance("fairseq_residuals.performance.cuda_graph_step")


@dataclass
class ChunkedLossConfig(LabelSmoothedCrossEntropyCriterionConfig):  # type: ignore[misc]
    cuda_graphs: bool = field(
        default=False,
        metadata={
            "help": "on a GPU, record the forward and backward pass of each shape of a batch as CUDA graphs, and launch"
            " these; shapes are few with --num-batch-buckets"
        },
    )


@register_criterion("chunked_label_smoothed_cross_entropy", dataclass=ChunkedLossConfig)
class ChunkedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):  # type: ignore[misc]
    """``--criterion chunked_label_smoothed_cross_entropy``, with the flags and the log of fairseq's, and
    ``--cuda-graphs``."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        cuda_graphs: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        self.cuda_graphs = cuda_graphs
        self.steps: dict[nn.Module, Any] = {}

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """The loss, its sample size, and what is logged.

        Raises:
            UserError: the model's output is no projection by a matrix (adaptive softmax), one loss per position is
                asked for, PyTorch's DDP would take the projection, which its forward pass does not use, for unused, or
                a step cannot be recorded as CUDA graphs.
        """
        _check(model, reduce)
        target = model.get_targets(sample, None)
        sums = self._by_graphs(model, sample, target)
        if sums is None:
            wanted = target[:, self.ignore_prefix_size :]
            real = wanted.ne(self.padding_idx)
            features = self._features(model, sample["net_input"])[real]
            weight = model.decoder.output_projection.weight
            sums = chunked_cross_entropy(features, weight, wanted[real], self.eps, count_correct=self.report_accuracy)
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

    def _features(self, model: Callable[..., Any], inputs: dict[str, Any]) -> Tensor:
        """(B, T, C) of the positions with a target."""
        features: Tensor = model(**inputs, features_only=True)[0]  # the rest holds each layer's output
        return features[:, self.ignore_prefix_size :]

    def _by_graphs(self, model: nn.Module, sample: dict[str, Any], target: Tensor) -> Sums | None:
        """None where a batch is not computed by graphs."""
        if not self.cuda_graphs or not model.training or not torch.is_grad_enabled():
            return None
        if model not in self.steps:
            _check_for_graphs(model, target.device)
            self.steps[model] = cuda_graph_step.Steps(model, self._features, self._loss)
        return self.steps[model].sums(sample["net_input"], target)  # type: ignore[no-any-return]

    def _loss(self, features: Tensor, weight: Tensor, target: Tensor) -> LossAndGradients:
        wanted = target[:, self.ignore_prefix_size :].flatten()
        padding = wanted.eq(self.padding_idx)
        return loss_and_gradients(
            features.flatten(0, 1), weight, wanted, self.eps, count_correct=self.report_accuracy, padding=padding
        )


def _wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """The model with what is around it, outermost first; with --heartbeat-timeout there is more than one."""
    yield model
    if isinstance(inner := getattr(model, "module", None), nn.Module):
        yield from _wrappers(inner)


def _check_for_graphs(model: Any, device: torch.device) -> None:
    if cuda_graph_step is None:
        raise UserError("--cuda-graphs needs fairseq_residuals/performance, which is missing here; leave it out")
    if device.type != "cuda":
        raise UserError("--cuda-graphs is for training on a CUDA device; leave it out on a CPU")
    if any(isinstance(w, DistributedDataParallel) for w in _wrappers(model)):
        raise UserError("--cuda-graphs on several GPUs needs --ddp-backend legacy_ddp")
    if not model.decoder.output_projection.weight.requires_grad:
        raise UserError("--cuda-graphs needs an output projection that is trained")
    if torch.is_autocast_enabled("cuda"):
        raise UserError("--cuda-graphs is not for --amp; train with --fp16 or --bf16")
    others = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "wrappers")
    if any(getattr(m, name, None) for m in model.modules() for name in others):
        raise UserError(
            "--cuda-graphs does not go with --encoder-layerdrop, --decoder-layerdrop, --checkpoint-activations and"
            " --compile-stack; leave these out, or this"
        )


def _check(model: Any, reduce: bool) -> None:
    projection = getattr(model.decoder, "output_projection", None)
    if not isinstance(projection, nn.Linear) or projection.bias is not None or not reduce:
        raise UserError(
            "chunked_label_smoothed_cross_entropy is for models whose output is a projection by a matrix, and for"
            " losses summed over a batch; use --criterion label_smoothed_cross_entropy, or adaptive_loss"
        )
    if (
        any(isinstance(w, DistributedDataParallel) and w.find_unused_parameters for w in _wrappers(model))
        and projection.weight is not model.decoder.embed_tokens.weight
    ):
        raise UserError(
            "chunked_label_smoothed_cross_entropy with --find-unused-parameters needs an output projection that is"
            " shared (--share-decoder-input-output-embed), or --ddp-backend legacy_ddp"
        )


# a checkpoint names the class of its criterion, and fairseq resumes by that class alone
ChunkedLabelSmoothedCrossEntropy.__name__ = LabelSmoothedCrossEntropyCriterion.__name__
