"""Where Admin's omegas start: the authors' profile of a network that is about to be trained.

One forward pass in training mode, dropout included, on one batch. Each stack starts with r = 1, and for each of its
sub-layers, in the order in which they run::

    omega := r;  r := sqrt(Var[omega x] + Var[F(x)])

x is the residual, F(x) the sub-layer's output after dropout; variances are over all T * B * C numbers, padding
included, in single precision. Layers further up see the omegas already set below them. Several batches are profiled one
by one, and the omegas are the root of the mean of their squares: variances are what adds up along the depth, and so
they are what is averaged.

fairseq's trainer does this by itself (:class:`AdminProfile`); in a training loop of your own, it is
``start_from(unprofiled(model), measure(model, lambda: model(**batch)))``.

(LiyuanLucasLiu/Transformer-Clinic@70f72b7, ``--init-type adaptive-profiling``, which takes the first batch.)
"""

from __future__ import annotations

import functools
import logging
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from fairseq.distributed import utils as distributed
from fairseq.optim import FP16Optimizer
from fairseq.optim.bmuf import FairseqBMUF
from torch import Tensor, nn

from fairseq_residuals.core.base import Stream, SubLayer
from fairseq_residuals.core.layer import CONNECTIONS, ResidualLayer
from fairseq_residuals.core.stack import Stack
from fairseq_residuals.models.extensions import Extension, register_extension
from fairseq_residuals.training.admin_profile_file import Omegas, read_profile, refuse_misfit
from fairseq_residuals.training.trainer_hooks import before_next_step, hooks_of
from fairseq_residuals.variants.admin import AdminConnection

logger = logging.getLogger(__name__)

Connections = dict[str, list[dict[str, AdminConnection]]]
"""By stack, for each of its layers the connections by kind of sub-layer."""


def unprofiled(model: nn.Module) -> Connections:
    """Return the connections whose omegas are neither profiled nor a checkpoint's, in the stacks that have any.

    (A layer that another variant wires has none.)
    """
    connections: Connections = {}
    for stack in model.modules():
        if isinstance(stack, Stack):
            layers = [_unprofiled_in(stack[i]) for i in range(len(stack))]
            if any(layers):
                connections[stack.shape.stack] = layers
    return connections


def _unprofiled_in(layer: ResidualLayer) -> dict[str, AdminConnection]:
    connections = {kind: getattr(layer, CONNECTIONS[kind]) for kind in layer.kinds}
    return {kind: c for kind, c in connections.items() if isinstance(c, AdminConnection) and not c.known}


@torch.no_grad()
def measure(model: nn.Module, forward: Callable[[], object]) -> Omegas:
    """Measure the omegas of all unprofiled stacks on one batch; the model keeps them until :func:`start_from`.

    Args:
        forward: runs ``model``, which is in training mode by then, on the batch.
    """
    connections = unprofiled(model)
    measured: Omegas = {stack: [{} for _ in layers] for stack, layers in connections.items()}
    with ExitStack() as undo:
        for stack in model.modules():
            if isinstance(stack, Stack):
                undo.callback(setattr, stack, "layerdrop", stack.layerdrop)
                stack.layerdrop = 0.0
        for name, layers in connections.items():
            chain = Chain()
            for layer, omegas in zip(layers, measured[name], strict=True):
                for kind, connection in layer.items():
                    hook = functools.partial(chain.pass_through, omegas, kind)
                    undo.callback(connection.register_forward_pre_hook(hook).remove)
        model.train()
        forward()
    return measured


class Chain:
    """Hold what the sub-layers of one stack hand up to each other while a pass runs through them."""

    def __init__(self) -> None:
        self.ratio = 1.0

    def pass_through(
        self, omegas: dict[str, float], kind: str, connection: AdminConnection, inputs: tuple[Stream, SubLayer]
    ) -> tuple[Stream, SubLayer]:
        """Set the omega of ``connection``, which is about to run, and watch its sub-layer's output."""
        stream, sublayer = inputs
        if connection.site.layer == 0 and connection.site.first:
            self.ratio = 1.0
        omegas[kind] = self.ratio
        connection.omega.fill_(self.ratio)
        residual = _variance(connection.omega * stream["x"])

        def watched(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            y, weights, s = sublayer(h, s)
            self.ratio = (residual + _variance(y)) ** 0.5
            return y, weights, s

        return stream, watched


def _variance(x: Tensor) -> float:
    return x.float().var(correction=0).item()


def average(profiles: list[Omegas]) -> Omegas:
    """Return the root mean square of one profile per batch."""
    return {
        stack: [
            {kind: (sum(p[stack][i][kind] ** 2 for p in profiles) / len(profiles)) ** 0.5 for kind in layer}
            for i, layer in enumerate(layers)
        ]
        for stack, layers in profiles[0].items()
    }


@torch.no_grad()
def start_from(connections: Connections, omegas: Omegas) -> None:
    """Set the omegas of ``connections``, which from now on count as profiled."""
    for stack, layers in connections.items():
        for layer, values in zip(layers, omegas[stack], strict=True):
            for kind, connection in layer.items():
                connection.omega.fill_(values[kind])
                connection.known = True


def profile(trainer: Any, samples: Iterable[Any]) -> Omegas:
    """Measure the omegas for the model of a fairseq trainer, as it would train it: device, precision, criterion, seed.

    Args:
        samples: batches of its iterator.
    """
    model, criterion = trainer.get_model(), trainer.get_criterion()
    criterion.train()
    trainer._set_seed()
    profiles = []
    for sample in samples:
        batch, _ = trainer._prepare_sample(sample)
        with torch.autocast(trainer.device.type, torch.float16, enabled=trainer.cuda and trainer.cfg.common.amp):
            profiles.append(measure(model, functools.partial(criterion, model, batch)))
    return average(profiles)


@register_extension("admin_profile")
class AdminProfile(Extension):
    """Give the models that fairseq's trainer trains their omegas, unless a checkpoint does."""

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Wait for the checkpoint to start from, if the wiring has omegas."""
        if unprofiled(model):
            hooks_of(model).after_load_checkpoint.append(_profile_what_is_left)


def _profile_what_is_left(trainer: Any) -> None:
    """Read files now, before training data is read; ``profile=auto`` waits for the first batch."""
    take_from_files(trainer.get_model())
    if unprofiled(trainer.get_model()):
        before_next_step(trainer, _profile_first_batch)


def take_from_files(model: nn.Module) -> None:
    """Set the omegas of the unprofiled stacks for which ``profile`` names a file.

    Raises:
        UserError: it is missing, damaged, or of another model.
    """
    for stack, layers in unprofiled(model).items():
        source = next(connection.profile for layer in layers for connection in layer.values())
        if source != "auto":
            omegas = read_profile(source)
            refuse_misfit(source, stack, omegas.get(stack, []), [list(layer) for layer in layers])
            start_from({stack: layers}, omegas)


def _profile_first_batch(trainer: Any, samples: list[Any]) -> None:
    """Measure the omegas on the first batch of the process of rank 0."""
    optimizer = trainer.optimizer  # makes the trainer move the model to its device, if it has not yet
    omegas: Any = profile(trainer, samples[:1]) if trainer.data_parallel_rank == 0 else None
    if trainer.data_parallel_world_size > 1:
        omegas = distributed.broadcast_object(
            omegas, src_rank=0, group=trainer.data_parallel_process_group, dist_device=trainer.device
        )
    start_from(unprofiled(trainer.get_model()), omegas)
    _renew_copies(optimizer)
    for stack, layers in omegas.items():
        values = [omega for layer in layers for omega in layer.values()]
        logger.info("profiled the first batch: omegas of the %s %.4f to %.4f", stack, min(values), max(values))


def _renew_copies(optimizer: Any) -> None:
    """Repeat the copies of the parameters that fairseq's optimizers made when they were built."""
    if isinstance(optimizer, FairseqBMUF):
        _renew_copies(optimizer._optimizer)
        optimizer._reset_local_data()
    if isinstance(optimizer, FP16Optimizer):
        if optimizer.has_flat_params:
            (flat,) = optimizer.fp32_params.values()
            flat.data.copy_(nn.utils.parameters_to_vector(optimizer.fp16_params))
        else:
            for copy, parameter in zip(optimizer.fp32_params, optimizer.fp16_params, strict=True):
                copy.data.copy_(parameter.data)
