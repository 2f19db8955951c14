"""Input of an analysis, a model with wired stacks and a loss, and hooks that watch it run and leave it as it was.

Nothing here knows a wiring: what is seen is what every stack has, layers that take and give a stream, and connections
that read from it, run a sub-layer and write to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Kind, Stream, SubLayer
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.stack import Stack

Point = Literal["layer input", "norm input", "norm", "fed", "sublayer", "stream", "layer output"]
"""``layer input`` and ``layer output``: "x" of the stream before and after a layer (the latter in a pass without
gradients: :meth:`~fairseq_residuals.wirings.core.base.Variant.layer_output`); ``norm input`` and ``norm``: what a
norm of the wiring takes and gives; ``fed``: what a sub-layer is given; ``sublayer``: its output after dropout;
``stream``: "x" after a connection wrote."""

SUBLAYERS: dict[Kind, str] = {"self": "self-attention", "cross": "cross-attention", "ffn": "FFN"}


@dataclass
class ModelAndLoss:
    """A model of any kind, with stacks of :func:`.build_stack` or :func:`.wrap` somewhere in it, and a batch."""

    model: Any
    loss: Callable[[], Tensor]
    """A function that runs the model on the batch, always the same, and returns its loss, a number."""
    label: str = ""
    """Name in legends and tables; unique among the models of a command."""
    wiring: str = ""
    """Name of its decoder's wiring, which chooses its style in plots."""
    batch: Any = None
    """The batch, where a command made it."""

    def backward(self) -> None:
        """Compute the gradients of the loss."""
        self.model.zero_grad(set_to_none=True)
        with plainly(self.model):
            self.loss().backward()


def stacks(model: nn.Module) -> list[Stack]:
    """Return the wired stacks of a model, the encoder's first.

    Raises:
        UserError: it has none, or two of one kind, whose numbers would be added.
    """
    wired = [module for module in model.modules() if isinstance(module, Stack)]
    if not wired:
        raise UserError(
            "this model has no wired stack; `fairseq-residuals import --from fairseq FILE OUT` makes one of a"
            " checkpoint of stock fairseq, and fairseq_residuals.wrap of a model of your own"
        )
    kinds = [stack.shape.stack for stack in wired]
    if len(set(kinds)) < len(kinds):
        raise UserError(f"this model has several stacks of one kind ({', '.join(kinds)}): analyse the part with one")
    return wired


@contextmanager
def plainly(model: nn.Module) -> Iterator[None]:
    """Run every layer once, and as it is, while the context is open: settings of training would disturb an analysis."""
    with ExitStack() as undo:
        for stack in stacks(model):
            undo.enter_context(replaced(stack, "layerdrop", 0.0))
            undo.enter_context(replaced(stack, "wrappers", []))
        yield


@dataclass(frozen=True)
class Event:
    """A tensor (T, B, C) at one point of a pass."""

    stack: Literal["encoder", "decoder"]
    layer: int
    """Layer, counted from 1 at the bottom, as in the papers; 0 before the first."""
    kind: Kind | None
    """The sub-layer's kind; None outside of them: layers' inputs and outputs, norms between layers."""
    point: Point
    tensor: Tensor
    padding: Tensor | None
    """(B, T), True at padding; None where there is none."""


See = Callable[[Event], None]


@contextmanager
def watch(model: nn.Module, see: See, *, whole: bool = False) -> Iterator[None]:
    """Call ``see`` for every point of every pass of ``model`` while the context is open, in the order of the pass.

    Tensors are the model's own, not copies, but for layers' outputs if those are to be ``whole``: all that the stream
    holds, collapsed. No hook is left afterwards, whatever is raised.
    """
    with ExitStack() as undo:
        for stack in stacks(model):
            watcher = _Watcher(stack.shape.stack, see)
            for owner in (m for m in model.modules() if stack in m.children()):
                undo.callback(owner.register_forward_pre_hook(watcher.before_pass).remove)
            norms = {m for m in stack.wiring.modules() if is_norm(m)}
            for i in range(len(stack)):
                layer = stack[i]
                undo.callback(layer.register_forward_pre_hook(partial(watcher.before_layer, i + 1)).remove)
                state = stack.wiring.at(i)[0].layer_output if whole else itemgetter("x")
                undo.callback(layer.register_forward_hook(partial(watcher.after_layer, state)).remove)
                for kind, connection in zip(layer.kinds, layer.connections(), strict=True):
                    before = partial(watcher.before_connection, kind)
                    undo.callback(connection.register_forward_pre_hook(before).remove)
                    undo.callback(connection.register_forward_hook(watcher.after_connection).remove)
                    norms |= {m for m in connection.modules() if is_norm(m)}
            for norm in norms:
                undo.callback(norm.register_forward_hook(watcher.after_norm).remove)
        yield


class _Watcher:
    """The hooks on one stack, and where its pass has got to."""

    def __init__(self, stack: Any, see: See) -> None:
        self.stack, self.see = stack, see
        self.layer = 0
        self.kind: Kind | None = None
        self.silent = False
        self.padding: Tensor | None = None

    def tell(self, point: Point, tensor: Tensor) -> None:
        self.see(Event(self.stack, self.layer, self.kind, point, tensor, self.padding))

    def before_pass(self, module: nn.Module, inputs: Any) -> None:
        self.layer, self.kind, self.silent, self.padding = 0, None, False, None

    def before_layer(self, number: int, layer: nn.Module, inputs: tuple[Stream, Any]) -> None:
        stream, context = inputs
        self.layer, self.kind = number, None
        # a packed row has none, although attention within the layer has
        self.padding = context.padding_mask if context.packing is None else None
        self.tell("layer input", stream["x"])

    def after_layer(self, state: Callable[[Stream], Tensor], layer: nn.Module, inputs: Any, output: Any) -> None:
        # the norms that this runs are none of the pass
        self.silent = True
        tensor = state(output[0])
        self.silent = False
        self.tell("layer output", tensor)

    def before_connection(self, kind: Kind, module: Any, inputs: tuple[Stream, SubLayer]) -> tuple[Stream, SubLayer]:
        stream, sublayer = inputs
        self.kind = kind

        def watched(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            self.tell("fed", h)
            self.silent = True
            y, weights, s = sublayer(h, s)
            self.silent = False
            self.tell("sublayer", y)
            return y, weights, s

        return stream, watched

    def after_connection(self, module: nn.Module, inputs: Any, output: tuple[Stream, Any]) -> None:
        self.tell("stream", output[0]["x"])
        self.kind = None

    def after_norm(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # a norm inside of a sub-layer is a part of it
        if not self.silent and output.shape[-1] == inputs[0].shape[-1]:
            self.tell("norm input", inputs[0])
            self.tell("norm", output)


@contextmanager
def replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Give a module another method or attribute while the context is open."""
    own = vars(module).get(name)  # else the class has it
    setattr(module, name, value)
    try:
        yield
    finally:
        delattr(module, name)
        if own is not None:
            setattr(module, name, own)


def norm_of(tensor: Tensor) -> float:
    """Return the euclidean norm over all entries, in at least single precision."""
    precision = torch.promote_types(tensor.dtype, torch.float32)
    return float(torch.linalg.vector_norm(tensor, dtype=precision))


def gradient_norm(module: nn.Module) -> float:
    """Return the euclidean norm of the gradients of all parameters together; layer dropout may leave none."""
    return math.hypot(*(norm_of(p.grad) for p in module.parameters() if p.grad is not None))


@contextmanager
def kept_for_backward() -> Iterator[dict[int, int]]:
    """Yield the bytes that autograd keeps of the passes inside, by storage: each counts once."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def run_forward(subject: ModelAndLoss) -> list[Event]:
    """Run one pass without gradients."""
    seen: list[Event] = []
    with torch.no_grad(), plainly(subject.model), watch(subject.model, seen.append, whole=True):
        subject.loss()
    return seen


def run_backward(subject: ModelAndLoss) -> tuple[list[Event], dict[int, float]]:
    """Run one pass and compute its gradients, which stay in the parameters.

    Returns:
        what was seen, and by the ``id`` of an event's tensor the norm of the loss's gradient with respect to it.
    """
    seen: list[Event] = []
    norms: dict[int, float] = {}
    watched: set[int] = set()

    def see(event: Event) -> None:
        key = id(event.tensor)
        if key not in watched and event.tensor.requires_grad:
            event.tensor.register_hook(lambda gradient: norms.update({key: norm_of(gradient)}))
        watched.add(key)
        seen.append(event)

    with watch(subject.model, see):
        subject.backward()
    return seen, norms


def unpadded(event: Event) -> Tensor:
    """(positions, C), in at least single precision."""
    x = event.tensor.detach()
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x.flatten(0, 1) if event.padding is None else x[~event.padding.T]
