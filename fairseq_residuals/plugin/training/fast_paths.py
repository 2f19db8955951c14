"""The flags that make training faster, each of which attaches what is in ``speed``, here and in the library."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from torch import nn

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.speed import compile_layers, recorded_criterion, relu_in_place
from fairseq_residuals.plugin.speed.fast_dropout import make_dropouts_fast
from fairseq_residuals.plugin.training.fast_by_default import changing_flags
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.speed import cpu


@register_extension("relu_in_place")
class ReluInPlace(Extension):
    """Compute ReLU in the memory of its input."""

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Replace the activation of the layers."""
        relu_in_place.attach(model)


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


@register_extension("compile_stack")
class CompileStack(Extension):
    """Compile the layers by torch.compile."""

    def add_flags(self, parser: ArgumentParser) -> None:
        """Add the flag."""
        parser.add_argument(
            "--compile-stack",
            action="store_true",
            default=None,
            help="train with layers compiled by torch.compile (in evaluation and generation they are not): the same"
            " numbers up to rounding, but other random numbers for dropout",
        )

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Compile the layers when they first train, and try before training whether that works on this machine."""
        if args.compile_stack:
            compile_layers.attach(model)
            hooks_of(model).after_load_checkpoint.append(_try_compiler)


def _try_compiler(trainer: Any) -> None:
    compile_layers.try_out(trainer.device, compile_layers.BACKEND)


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
    criterion, recordable = trainer.get_criterion(), recorded_criterion.RecordableCriterion
    if not isinstance(criterion, recordable):
        served = sorted(name for name, kind in CRITERION_REGISTRY.items() if issubclass(kind, recordable))
        raise UserError(
            f"--cuda-graphs is not for --criterion {trainer.cfg.criterion._name}; it is for {', '.join(served)}"
        )
    if trainer.cfg.common.amp:
        raise UserError("--cuda-graphs is not for --amp; train with --fp16 or --bf16")
    recorded_criterion.refuse_unrecordable(trainer.model, trainer.device)
    recorded_criterion.record_steps(criterion)
