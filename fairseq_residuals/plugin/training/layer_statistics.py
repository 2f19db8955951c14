"""``--log-residual-stats N``: every N updates, gradient norms per layer and the learned weights of the wiring.

They are logged as fairseq's own metrics are, so every back end shows them (json, tensorboard, wandb, ...). NAME is what
a checkpoint calls a parameter:

=================================  ===================================================================================
``gnorm/encoder.layers.3``         norm of the gradient of that layer's parameters, before clipping
``gnorm/encoder.layers.wiring``    the same for what spans the layers: the norm on top, weights over depth
``learned/NAME``                   a parameter of the wiring that is one number
``learned/NAME.mean``              also ``.min`` and ``.max``: of a vector (a gain per channel or head)
``learned/NAME.4.2``               row 4, column 2 of a matrix over depth or streams, unless it is zero; where an
                                   entry is one weight per channel, their mean
=================================  ===================================================================================

Gradients are those of the update: averaged over workers, accumulated over ``--update-freq``, without the loss scale of
fp16; what several layers share counts in each of them. Weights are those after the update, as a checkpoint has them.
"""

from __future__ import annotations

import itertools
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.optim import AMPOptimizer
from fairseq.optim.bmuf import FairseqBMUF
from torch import Tensor, nn

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.wirings.core.base import Connection, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.gpas import ActivationScaling
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from fairseq_residuals.wirings.core.value_residual import ValueResidual


def gradient_norms(model: nn.Module) -> dict[str, Tensor]:
    """Return, by name, the norm of the gradients as they are stored: a number in at least fp32, on its device."""
    norms = {}
    for path, stack in named_stacks(model):
        for name, part in stack.named_children():
            parameters = list(part.parameters())
            if parameters:
                at_least_single = torch.promote_types(parameters[0].dtype, torch.float32)
                zero = parameters[0].new_zeros((), dtype=at_least_single)  # layer dropout may leave no gradient at all
                each = [torch.linalg.vector_norm(p.grad, dtype=zero.dtype) for p in parameters if p.grad is not None]
                norms[f"gnorm/{path}.{name}"] = torch.stack([zero, *each]).norm()
    return norms


def named_stacks(model: nn.Module) -> Iterator[tuple[str, Stack]]:
    """Return the wired stacks of a model with their names in it."""
    return ((path, module) for path, module in model.named_modules() if isinstance(module, Stack))


MOST_ENTRIES = 1024
"""A matrix of more is logged by its mean, minimum and maximum; 30 layers have 31 x 31 weights over depth."""


@register_extension("layer_statistics")
class LayerStatistics(Extension):
    """Log statistics of the layers every N updates."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add the number of updates."""
        parser.add_argument(
            "--log-residual-stats",
            type=int,
            metavar="N",
            help="every N updates log gradient norms per layer and the learned weights of the wiring",
        )

    def check(self, args: Namespace) -> None:
        """Refuse a negative number."""
        if (every := args.log_residual_stats) is not None and every < 0:
            raise UserError(f"--log-residual-stats must be a whole number of updates, or 0 for never, not {every!r}")

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Measure gradients before they are clipped, and log them when the update is logged."""
        if args.log_residual_stats:
            statistics = _Statistics(args.log_residual_stats)
            hooks_of(model).before_clip.append(statistics.measure)
            hooks_of(model).on_log.append(statistics.log)


class _Statistics:
    """Statistics of one model in training."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.norms: dict[str, Tensor] = {}
        """Norms of the gradients of the update that is being made."""

    def measure(self, trainer: Any) -> None:
        if (trainer.get_num_updates() + 1) % self.every == 0:
            scale = _remaining_scale(trainer.optimizer)
            self.norms = {name: norm * scale for name, norm in gradient_norms(trainer.get_model()).items()}

    def log(self, trainer: Any) -> None:
        _forget_spent_meters()
        if trainer.get_num_updates() % self.every == 0:
            _log(self.norms, learned_weights(trainer.get_model()))


def learned_weights(model: nn.Module) -> dict[str, float]:
    """Return, by name, numbers that describe what connections and variants learn beside norms and linear maps."""
    named: dict[nn.Parameter, tuple[str, int]] = {}
    for path, stack in named_stacks(model):
        for place, wiring in stack.named_modules(prefix=path):
            if isinstance(wiring, (Connection, Variant, ValueResidual, ActivationScaling)):
                for inside, module in wiring.named_modules(prefix=place):
                    if not is_norm(module) and not isinstance(module, nn.Linear):
                        for name, parameter in module.named_parameters(inside, recurse=False):
                            named.setdefault(parameter, (fairseq_name(name), stack.shape.dim))
    return {
        f"learned/{name}{entry}": number
        for parameter, (name, dim) in named.items()
        if parameter.requires_grad
        for entry, number in _describe(parameter.detach().float(), dim).items()
    }


def _describe(value: Tensor, channels: int) -> dict[str, float]:
    if value.numel() == 1:
        return {"": value.item()}
    over_depth = [size for size in value.shape if size not in (1, channels)]
    if value.dim() > 1 and over_depth:
        for axis in reversed(range(value.dim())):
            if value.size(axis) in (1, channels):
                value = value.mean(axis)
        if value.numel() <= MOST_ENTRIES:
            places = itertools.product(*map(range, over_depth))
            # a layer weighs what lies below it: the rest of such a matrix is zero
            entries = {place: x for place, x in zip(places, value.flatten().tolist(), strict=True) if x != 0}
            return {"".join(f".{i}" for i in place): x for place, x in entries.items()}
    return {f".{name}": getattr(value, name)().item() for name in ("mean", "min", "max")}


def _remaining_scale(optimizer: Any) -> Any:
    """Return the factor that the stored gradients still lack: fairseq's fp16 optimizers multiply when they step."""
    if isinstance(optimizer, FairseqBMUF):
        optimizer = optimizer._optimizer
    if isinstance(optimizer, AMPOptimizer):
        return 1.0 / optimizer.scaler.get_scale()
    return getattr(optimizer, "_multiply_factor", 1.0)


def _log(norms: dict[str, Tensor], weights: dict[str, float]) -> None:
    for name, norm in zip(norms, torch.stack(list(norms.values())).tolist(), strict=True):
        metrics.log_scalar(name, norm, priority=410)  # behind fairseq's gnorm, and like it averaged over a log interval
    for name, weight in weights.items():
        metrics.log_scalar(name, weight, weight=0, priority=420)  # the latest


def _forget_spent_meters() -> None:
    """Remove meters without a value since their last reset: some back ends refuse the null that is logged."""
    for meters in metrics.get_active_aggregators():
        spent = {k for k in meters if k.startswith(("gnorm/", "learned/")) and meters[k].val is None}
        for key in spent:
            del meters[key]
        meters.priorities = [entry for entry in meters.priorities if entry[2] not in spent]
