"""Ways to train faster that flags ask for; each attaches what is in ``speed``, here and in the library."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.speed import cuda_graph_step
from fairseq_residuals.plugin.speed.bit_dropout import LEVELS, bit_dropout
from fairseq_residuals.plugin.training import chunked_label_smoothed_cross_entropy as chunked
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import ResidualLayer
from fairseq_residuals.wirings.speed import cpu
from fairseq_residuals.wirings.utils.torch_private import has_hooks


@dataclass(frozen=True)
class ReLUInPlace:
    """Compute relu of what ``before`` has just returned: in its memory, unless hooks may have kept it."""

    before: nn.Module

    def __call__(self, h: Tensor) -> Tensor:
        """(..., F) -> (..., F)"""
        return torch.relu(h) if has_hooks(self.before) else torch.relu_(h)


@register_extension("relu_in_place")
class ReluInPlace(Extension):
    """Compute ReLU in the memory of its input, which nobody else has."""

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Replace the activation of the layers."""
        for layer in model.modules():
            if isinstance(layer, ResidualLayer) and getattr(layer, "activation_fn", None) is F.relu:
                layer.activation_fn = ReLUInPlace(layer.fc1)


class FastDropout(FairseqDropout):  # type: ignore[misc]
    """Use :func:`.bit_dropout` in training on a CPU, and fairseq's dropout elsewhere.

    The probability is rounded to a multiple of 2^-16.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Drop values of x, (...) -> (...)."""
        dropped = round(self.p * LEVELS)
        serves = self.training and x.device.type == "cpu" and torch.is_grad_enabled() and 0 < dropped < LEVELS
        # torch.compile fuses fairseq's dropout, and would break its graph at this one
        if not serves or torch.compiler.is_compiling():
            return super().forward(x, inplace)
        return bit_dropout(x, dropped)


def make_dropouts_fast(model: nn.Module) -> None:
    """Replace fairseq's dropouts."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is FairseqDropout:
                setattr(module, name, FastDropout(child.p, child.module_name))


@register_extension("fast_on_cpu")
class FastOnCpu(Extension):
    """Train faster on a CPU."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add a flag for what changes rounding and the random numbers of dropout, and one for what changes neither."""
        parser.add_argument(
            "--fast-on-cpu",
            action="store_true",
            default=None,
            help="train faster on a CPU by products and attention that add up in another order, and by a dropout that"
            " draws other random numbers; no effect on other devices",
        )
        parser.add_argument(
            "--keep-freed-memory",
            action="store_true",
            default=None,
            help="on a CPU under Linux, a process that trains or searches with the model keeps the memory that it frees"
            " for what it allocates next, which is faster; --fast-on-cpu implies it",
        )

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Replace modules that have faster forms, and run training steps as fast as the model's settings permit."""
        cpu.attach(model, fast=bool(args.fast_on_cpu), keep_memory=bool(args.keep_freed_memory))
        if args.fast_on_cpu:
            make_dropouts_fast(model)
        hooks_of(model).around_train_step.append(_tuned_on_cpu)


def _tuned_on_cpu(trainer: Any) -> AbstractContextManager[object]:
    return cpu.tuned(trainer.get_model()) if trainer.device.type == "cpu" else nullcontext()


CHANGING = ("encoder_layerdrop", "decoder_layerdrop", "checkpoint_activations")
"""Settings by which the work of a step changes from one to the next."""


@register_extension("cuda_graphs")
class CudaGraphs(Extension):
    """Record training steps as CUDA graphs."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add the flag."""
        parser.add_argument(
            "--cuda-graphs",
            action="store_true",
            default=None,
            help="on a GPU, record the forward and backward pass of each shape of a batch as CUDA graphs, and launch"
            " these; shapes are few with --num-batch-buckets; for --criterion chunked_label_smoothed_cross_entropy",
        )

    def check(self, args: Namespace) -> None:
        """Refuse the flag beside those by which the work of a step changes: no graph can have it."""
        changing = [key for key in CHANGING if getattr(args, key, None)]
        if args.cuda_graphs and changing:
            flags = ", ".join(f"--{key.replace('_', '-')}" for key in changing)
            raise UserError(f"--cuda-graphs does not go with {flags}; leave one of them out")

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Have the criterion of the trainer record its steps, before it trains."""
        if args.cuda_graphs:
            hooks_of(model).after_load_checkpoint.append(_record_steps)


def _record_steps(trainer: Any) -> None:
    """Attach graphs to the trainer's criterion.

    Raises:
        UserError: it does not serve, or the model, the device or the precision does not.
    """
    criterion = trainer.get_criterion()
    if not isinstance(criterion, chunked.LabelSmoothedCrossEntropyCriterion):
        raise UserError(
            f"--cuda-graphs is not for --criterion {trainer.cfg.criterion._name}; it is for"
            " chunked_label_smoothed_cross_entropy"
        )
    if trainer.cfg.common.amp:
        raise UserError("--cuda-graphs is not for --amp; train with --fp16 or --bf16")
    cuda_graph_step.refuse_unrecordable(trainer.model, trainer.device)
    cuda_graph_step.record_steps(criterion)
