"""Measure where Admin's omegas start: the authors' profile of a network that is about to be trained.

One forward pass in training mode, dropout included, on one batch. Each stack starts with r = 1, and for each of its
sub-layers, in the order in which they run::

    omega := r;  r := sqrt(Var[omega x] + Var[F(x)])

x is the residual, F(x) the sub-layer's output after dropout; variances are over all T * B * C numbers, padding
included, in single precision. Layers further up see the omegas already set below them.

fairseq's trainer does this by itself (:mod:`fairseq_residuals.plugin.training.admin_profile`), and so does a stack of
the library in its first pass in training mode (:class:`ProfileFirstBatch`). For another model of fairseq's in a
training loop of your own, it is ``profile(model, lambda: model(**batch))``.

(LiyuanLucasLiu/Transformer-Clinic@70f72b7, ``--init-type adaptive-profiling``, which takes the first batch.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from fairseq_residuals.wirings.core.base import Stream, SubLayer
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Layer
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.utils.torch_private import data_parallel_at_work, is_transforming, not_compiled
from fairseq_residuals.wirings.variants.admin import AdminConnection

Connections = dict[str, list[dict[str, AdminConnection]]]
"""Connections by stack, layer and kind of sub-layer, the second of which has a number."""
Omegas = dict[str, list[dict[str, float]]]
"""Omegas by stack (encoder, decoder), layer and kind of sub-layer (self, cross, ffn, or ffn1 for a second one)."""


def unprofiled(model: nn.Module) -> Connections:
    """Return the connections of the stacks whose omegas are neither profiled nor a trained checkpoint's.

    (A layer that another variant wires has none.)
    """
    connections: Connections = {}
    for stack in model.modules():
        if isinstance(stack, Stack):
            layers = [_connections_of(stack[i]) for i in range(len(stack))]
            if any(layers) and not any(c.known for layer in layers for c in layer.values()):
                connections[stack.shape.stack] = layers
    return connections


def _connections_of(layer: Layer) -> dict[str, AdminConnection]:
    names = [f"{kind}{layer.kinds[:i].count(kind) or ''}" for i, kind in enumerate(layer.kinds)]
    connections = zip(names, layer.connections(), strict=True)
    return {name: c for name, c in connections if isinstance(c, AdminConnection)}


@torch.no_grad()
def measure(model: nn.Module, forward: Callable[[], object]) -> Omegas:
    """Measure the omegas of all unprofiled stacks on one batch; :func:`start_from` gives them to the model.

    Args:
        forward: runs ``model``, which is in training mode by then, on the batch; parts that were not, though the
            model was, stay so.

    Raises:
        UserError: as :func:`refuse_files`.
    """
    connections = unprofiled(model)
    refuse_files(connections)
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
                    hook = partial(chain.pass_through, omegas, kind)
                    undo.callback(connection.register_forward_pre_hook(hook).remove)
                    undo.callback(connection.omega.fill_, 1.0)
        if not model.training:
            for module in model.modules():
                undo.callback(setattr, module, "training", module.training)
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


@torch.no_grad()
def start_from(connections: Connections, omegas: Omegas) -> None:
    """Set the omegas of ``connections``."""
    for stack, layers in connections.items():
        for layer, values in zip(layers, omegas[stack], strict=True):
            for kind, connection in layer.items():
                connection.omega.fill_(values[kind])


def profile(model: nn.Module, forward: Callable[[], object]) -> None:
    """Measure and set the omegas of all unprofiled stacks, if there are any; ``forward`` is that of :func:`measure`.

    Raises:
        UserError: as :func:`refuse_files`.
    """
    if connections := unprofiled(model):
        start_from(connections, measure(model, forward))


def refuse_files(connections: Connections) -> None:
    """Refuse what earlier versions could be told; checkpoints that say so load, and need no file.

    Raises:
        UserError: the omegas are to start from a file.
    """
    sources = {c.profile for layers in connections.values() for layer in layers for c in layer.values()} - {"auto"}
    if sources:
        raise UserError(f"profile={min(sources)}: files of omegas are read no more; valid: auto, the first batch")


MEASURES = (
    "measures its omegas on the first batch of training, by values that no graph and no transform has: run the stack on"
    " a batch in training mode before it is compiled or transformed, or load a checkpoint"
)


class ProfileFirstBatch:
    """A forward pre-hook of a stack: its first pass in training mode profiles it, unless it has omegas by then."""

    def __init__(self) -> None:
        self.done = False

    def __call__(self, stack: Stack, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Measure with dropout as in training, and leave the random numbers as they were."""
        if self.done or not stack.training or kwargs.get("cache") is not None:  # which a second pass would fill twice
            return
        if is_transforming():
            raise UserError(f"admin {MEASURES}")
        self.measure(stack, args, kwargs)

    @not_compiled(f"Admin {MEASURES}")
    def measure(self, stack: Stack, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Set the omegas."""
        self.done = True
        if connections := unprofiled(stack):
            with torch.random.fork_rng():
                omegas = [measure(stack, lambda: stack(*args, **kwargs))]
                if parallel := data_parallel_at_work():  # each process has a batch of its own
                    distributed.broadcast_object_list(omegas, group=parallel.process_group, group_src=0)
                start_from(connections, omegas[0])
