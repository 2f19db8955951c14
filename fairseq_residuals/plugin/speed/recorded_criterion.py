"""Criterions whose steps are CUDA graphs (:mod:`.cuda_graph_step`): which can be, and what replaces their sums."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_residuals.plugin.speed.cuda_graph_step import Inputs, RecordedSteps
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.ops.chunked_cross_entropy import LossAndGradients, Sums

logger = logging.getLogger(__name__)


@runtime_checkable
class RecordableCriterion(Protocol):
    """A criterion whose steps can be recorded: a sum over positions, of features that an output projection is fed."""

    def sums(self, model: Any, sample: dict[str, Any], target: Tensor) -> Sums:
        """Return the loss of a batch, and what is logged of it."""

    def features(self, model: Callable[..., Any], inputs: Inputs) -> Tensor:
        """Return what the output projection is fed (B, T, C)."""

    def loss_and_gradients(self, features: Tensor, weight: Tensor, target: Tensor) -> LossAndGradients:
        """Return the loss of features (B, T, C), the projection's matrix and target (B, T), with its gradients."""


class RecordedSums:
    """Replaces ``sums`` of a criterion: in training by graphs, otherwise and where these do not serve by its own."""

    def __init__(self, criterion: RecordableCriterion, *, required: bool) -> None:
        self.criterion, self.plain, self.required = criterion, criterion.sums, required
        self.steps: dict[nn.Module, RecordedSteps] = {}
        self.given_up = False

    def __call__(self, model: nn.Module, sample: dict[str, Any], target: Tensor) -> Sums:
        if self.given_up or not model.training or not torch.is_grad_enabled():
            return self.plain(model, sample, target)
        if model not in self.steps:
            self.steps[model] = RecordedSteps(model, self.criterion.features, self.criterion.loss_and_gradients)
        try:
            sums = self.steps[model].sums(sample["net_input"], target)
        except UserError as error:
            if self.required:
                raise
            logger.warning("%s: this run, which took graphs without being asked, goes on without", error)
            self.given_up, sums = True, None
        return self.plain(model, sample, target) if sums is None else sums


def record_steps(criterion: RecordableCriterion, *, required: bool = True) -> None:
    """Have a criterion compute what it trains by graphs, from the first batch of each shape on.

    Args:
        required: whether a model that cannot be recorded ends the run; otherwise it goes on without graphs.
    """
    if not records_steps(criterion):
        criterion.sums = RecordedSums(criterion, required=required)  # type: ignore[method-assign]


def records_steps(criterion: Any) -> bool:
    """Return whether a criterion computes what it trains by graphs."""
    return isinstance(getattr(criterion, "sums", None), RecordedSums)


def refuse_unrecordable(model: Any, device: torch.device) -> None:
    """Refuse a model, with the wrappers around it, and a device for which there are no graphs.

    Raises:
        UserError: it is one.
    """
    if device.type != "cuda":
        raise UserError("--cuda-graphs is for training on a CUDA device; leave it out on a CPU")
    if any(isinstance(m, DistributedDataParallel) for m in model.modules()):
        raise UserError("--cuda-graphs on several GPUs needs --ddp-backend legacy_ddp")
    projection = getattr(model.decoder, "output_projection", None)
    if not isinstance(projection, nn.Linear) or not projection.weight.requires_grad:
        raise UserError("--cuda-graphs needs an output projection that is trained")
