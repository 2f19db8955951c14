"""Ways to train faster: those that a run on a GPU takes without being asked, and those that flags ask for.

The first changes numbers by rounding alone, and ``--plain`` leaves it out. :func:`choose` decides from settings and
device alone, and a run's first lines say what was chosen. Each flag attaches what is in ``speed``, here and in the
library.
"""

from __future__ import annotations

import functools
import logging
from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.modules.fairseq_dropout import FairseqDropout
from fairseq.optim import FP16Optimizer
from fairseq.optim.adam import Adam, FairseqAdam
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.speed import cuda_graph_step, packed_forward
from fairseq_residuals.plugin.training.chunked_label_smoothed_cross_entropy import (
    ChunkedLabelSmoothedCrossEntropy,
)
from fairseq_residuals.plugin.training.optim import FusedAdam
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import ResidualLayer
from fairseq_residuals.wirings.ops.bit_dropout import LEVELS, bit_dropout
from fairseq_residuals.wirings.speed import cpu
from fairseq_residuals.wirings.utils.torch_private import has_hooks

logger = logging.getLogger(__name__)

CHUNKED, STOCK_LOSS = "chunked_label_smoothed_cross_entropy", "label_smoothed_cross_entropy"
LOSS, ADAM, GRAPHS = "the loss in chunks", "fused Adam", "CUDA graphs"
ON = ""


def choose(trainer: Any, args: Namespace, device: str) -> dict[str, str]:
    """Return, for everything there is to choose, :data:`ON` or why it is off.

    Args:
        trainer: one that is about to train, whose settings decide.
        args: settings of its model.
        device: kind of its device: cpu, cuda.
    """
    if args.plain:
        return dict.fromkeys((LOSS, ADAM, GRAPHS), "--plain")
    if device != "cuda":
        return dict.fromkeys((LOSS, ADAM, GRAPHS), f"the device is {device}, where flags ask for it")
    settings, model = trainer.cfg, trainer.get_model()
    common, optimizer, parallel = settings.common, settings.optimizer, settings.distributed_training
    half_moments = common.memory_efficient_fp16 or common.memory_efficient_bf16
    packed, changing = args.packed is not None, changing_flags(args)
    no_one_shape = packed_forward.why_no_one_shape(model, trainer.device) if packed else ""
    loss = _first_that_holds(
        {
            f"it is for --criterion {STOCK_LOSS}": settings.criterion._name not in (CHUNKED, STOCK_LOSS),
            "the output is no projection by a trained matrix": not _projects(model, parallel.find_unused_parameters),
        }
    )
    adam = _first_that_holds(
        {
            # without an optimizer fairseq refuses to train, but later
            "it is for --optimizer adam": getattr(optimizer, "_name", "") not in ("adam", "fused_adam"),
            "it works in single precision": half_moments or bool(getattr(optimizer, "fp16_adam_stats", False)),
        }
    )
    graphs = _first_that_holds(
        {
            f"they need {LOSS}": loss != ON,
            "they are not for --amp": common.amp,
            f"they do not go with {', '.join(changing)}": bool(changing),
            "on several GPUs they need --ddp-backend legacy_ddp": trainer.data_parallel_world_size > 1
            and parallel.ddp_backend not in ("legacy_ddp", "no_c10d"),
            no_one_shape: bool(no_one_shape),
            "batches have many shapes; --packed makes them one": not packed
            and not getattr(settings.task, "num_batch_buckets", 0),
        }
    )
    return {LOSS: loss, ADAM: adam, GRAPHS: graphs}


def _first_that_holds(reasons: dict[str, bool]) -> str:
    return next((reason for reason, holds in reasons.items() if holds), ON)


def _projects(model: Any, find_unused: bool) -> bool:
    """Return whether the model's output is a projection by a matrix that is trained."""
    projection = getattr(model.decoder, "output_projection", None)
    return (
        isinstance(projection, nn.Linear)
        and projection.bias is None
        and projection.weight.requires_grad
        # DistributedDataParallel would take a matrix for unused that only the loss uses
        and (not find_unused or projection.weight is model.decoder.embed_tokens.weight)
    )


def changing_flags(args: Namespace) -> tuple[str, ...]:
    """Return the flags that are set by which the work of a step changes: no graph can have it."""
    changing = ("encoder_layerdrop", "decoder_layerdrop", "checkpoint_activations")
    return tuple(f"--{name.replace('_', '-')}" for name in changing if getattr(args, name, None))


@register_extension("fast_by_default")
class FastByDefault(Extension):
    """Take what is faster and computes the same."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add the flag that leaves it out."""
        parser.add_argument(
            "--plain",
            action="store_true",
            default=None,
            help="on a GPU, leave out what makes training faster without being asked: the loss in chunks, the fused"
            " kernel of Adam, CUDA graphs; a run's first lines say which are on",
        )

    def check(self, args: Namespace) -> None:
        """Refuse to be told both."""
        if args.plain and args.cuda_graphs:
            raise UserError("--plain leaves CUDA graphs out and --cuda-graphs asks for them; give one of them")

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Choose once the trainer is there, and before it trains."""
        hooks_of(model).after_load_checkpoint.append(functools.partial(_take_what_is_faster, args=args))


def device_of(trainer: Any) -> str:
    """Return the kind of a trainer's device."""
    return trainer.device.type  # type: ignore[no-any-return]


def _take_what_is_faster(trainer: Any, *, args: Namespace) -> None:
    device = device_of(trainer)
    if device == "cpu":
        return
    chosen = choose(trainer, args, device)
    if chosen[LOSS] == ON and trainer.cfg.criterion._name != CHUNKED:
        trainer._criterion, trainer._wrapped_criterion = in_chunks(trainer.get_criterion()), None
    if chosen[ADAM] == ON:
        fuse(trainer.optimizer)
    if chosen[GRAPHS] == ON and not args.cuda_graphs:
        cuda_graph_step.record_steps(trainer.get_criterion(), required=False)
    for name, reason in chosen.items():
        if reason == ON or (name == GRAPHS and args.cuda_graphs):
            logger.info("%s: on", name)
        else:
            logger.info("%s: off (%s)", name, reason)


def in_chunks(criterion: Any) -> ChunkedLabelSmoothedCrossEntropy:
    """Return fairseq's label-smoothed loss, computed in chunks."""
    return ChunkedLabelSmoothedCrossEntropy(
        criterion.task,
        criterion.sentence_avg,
        criterion.eps,
        criterion.ignore_prefix_size,
        criterion.report_accuracy,
    )


def fuse(optimizer: Any) -> None:
    """Let fairseq's Adam compute by the fused kernel from now on, with the state that it has."""
    if isinstance(optimizer, FP16Optimizer):
        optimizer = optimizer.fp32_optimizer
    if isinstance(optimizer, FairseqAdam) and type(optimizer._optimizer) is Adam:
        plain = optimizer._optimizer
        optimizer._optimizer = FusedAdam(plain.param_groups, **optimizer.optimizer_config)
        optimizer._optimizer.state = plain.state


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
        """Refuse the flag beside what cannot be recorded or changes from step to step."""
        if args.cuda_graphs and changing_flags(args):
            raise UserError(f"--cuda-graphs does not go with {', '.join(changing_flags(args))}; leave one of them out")

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Have the criterion of the trainer record its steps, before it trains."""
        if args.cuda_graphs:
            hooks_of(model).after_load_checkpoint.append(_record_steps)


def _record_steps(trainer: Any) -> None:
    """Attach graphs to the trainer's criterion.

    Raises:
        UserError: it does not serve, or the model, the device or the precision does not.
    """
    criterion, recordable = trainer.get_criterion(), cuda_graph_step.RecordableCriterion
    if not isinstance(criterion, recordable):
        served = sorted(name for name, kind in CRITERION_REGISTRY.items() if issubclass(kind, recordable))
        raise UserError(
            f"--cuda-graphs is not for --criterion {trainer.cfg.criterion._name}; it is for {', '.join(served)}"
        )
    if trainer.cfg.common.amp:
        raise UserError("--cuda-graphs is not for --amp; train with --fp16 or --bf16")
    cuda_graph_step.refuse_unrecordable(trainer.model, trainer.device)
    cuda_graph_step.record_steps(criterion)
