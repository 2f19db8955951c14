"""The graph of what the wiring of a layer computes, found by running it, whatever the variant.

A layer runs on tensors without values while PyTorch reports every function that is called. Sub-layers, and modules that
belong to the wiring, become one box each; reshaping is left out; the rest is the wiring's arithmetic.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fairseq_residuals.lab.look.probes import SUBLAYERS
from fairseq_residuals.wirings.core.base import Stream, SubLayer
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.stack import Stack

COSTS = {"stop": 10**6, "sublayer": 10_000, "norm": 100, "module": 2}
"""Costs of a gradient's way through a box; of any other 1. The way with the fewest sub-layers, then norms, is told."""


@dataclass(frozen=True)
class Node:
    """A box of the diagram."""

    number: int
    label: str
    kind: str
    """in, out, sublayer, norm, sum, module (any other, such as gates), operation, or stop (no gradient passes it)."""
    inputs: tuple[int, ...]


@dataclass
class Graph:
    """Boxes in the order in which they are computed."""

    nodes: list[Node] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """Numbers of the boxes on the gradient's easiest way, from an input to an output."""

    def add(self, label: str, kind: str, inputs: Iterable[int]) -> int:
        self.nodes.append(Node(len(self.nodes), label, kind, tuple(dict.fromkeys(inputs))))
        return len(self.nodes) - 1

    def crossed(self, kind: str) -> int:
        """Return how many boxes of a kind are on the gradient's way."""
        return sum(self.nodes[n].kind == kind for n in self.path)


def without_unused(graph: Graph) -> Graph:
    """Return only what leads to an output, numbered anew, with the gradient's way."""
    needed: set[int] = set()
    waiting = [node.number for node in graph.nodes if node.kind == "out"]
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += graph.nodes[number].inputs
    clean, new = Graph(), {}
    for node in graph.nodes:
        if node.number in needed and node.kind != "in":
            # what comes from below stands where it is first used
            for n in (n for n in node.inputs if n not in new):
                new[n] = clean.add(graph.nodes[n].label, "in", ())
            new[node.number] = clean.add(node.label, node.kind, [new[n] for n in node.inputs])
    below, above = ({node.number for node in clean.nodes if node.kind == kind} for kind in ("in", "out"))
    way = easiest_way({node.number: (node.kind, node.inputs) for node in clean.nodes}, below, sorted(above))
    clean.path = [] if any(clean.nodes[n].kind == "stop" for n in way) else way
    return clean


def easiest_way(boxes: Mapping[int, tuple[str, Iterable[int]]], start: set[int], end: Iterable[int]) -> list[int]:
    """Return the cheapest way (:data:`COSTS`) from a box of ``start`` to one of ``end``; empty where there is none.

    Args:
        boxes: the kind of each, and the numbers of those that lead to it.
    """
    queue: list[tuple[int, tuple[int, ...]]] = [(0, (number,)) for number in end]
    done: set[int] = set()
    while queue:
        cost, way = heapq.heappop(queue)
        if way[-1] in start:
            return list(reversed(way))
        if way[-1] not in done:
            done.add(way[-1])
            for number in boxes[way[-1]][1]:
                heapq.heappush(queue, (cost + COSTS.get(boxes[number][0], 1), (*way, number)))
    return []


SAME = {
    *("unflatten", "flatten", "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "expand"),
    *("contiguous", "unbind", "chunk", "split", "__getitem__", "type_as", "to", "float", "dropout", "clone", "detach"),
}
"""Functions whose result is their input for the purpose of a diagram."""
NORM_LABELS = {"RMSNorm": "RMS", "ScaleNorm": "Scale", "DyT": "DyT", "Derf": "Derf"}
"""Labels of the norms that are not LayerNorm."""
NORM_FUNCTIONS = {"layer_norm": "LN", "rms_norm": "RMS"}
"""Labels of norms that are no modules."""
SIGNS = {"add": "+", "sub": "-", "mul": "×", "div": "÷", "truediv": "÷"}
TIMES_ONE = {"mul", "rmul", "div", "truediv"}
"""Functions that change nothing where a number in them is 1."""


def trace_layer(stack: Stack, number: int) -> Graph:
    """Return the graph of layer ``number`` (from 0) of a stack whose tensors are on the device ``meta``."""
    return next(islice(trace_layers(stack), number, None))


def trace_layers(stack: Stack) -> Iterator[Graph]:
    """Yield the graphs of all layers from the lowest on, each run once, on three positions of two sentences."""
    parameter, attention = next(stack.parameters()), stack[0].encoder_attn
    context = Context(
        memory=None if attention is None else parameter.new_empty(3, 2, attention.kdim),
        self_attn_mask=parameter.new_empty(3, 3) if stack.shape.stack == "decoder" else None,
    )
    s = stack.wiring.open(parameter.new_empty(3, 2, stack.shape.dim))
    for number in range(len(stack)):
        graph, s = _trace(stack, number, s, context)
        yield graph


def _trace(stack: Stack, number: int, s: Stream, context: Context) -> tuple[Graph, Stream]:
    """Return the graph of a layer, and the stream above it."""
    layer, wiring = stack[number], stack.wiring
    graph = Graph()
    recorder = _Recorder(graph, dict(wiring.at(number)[0].named_parameters()) | dict(layer.named_parameters()))
    # tensors of their own: what stands twice in a stream has two names in it
    s = {key: value.detach().requires_grad_().clone() for key, value in s.items()}
    for key, value in sorted(s.items(), key=lambda item: item[0] != "x"):
        recorder.know(value, graph.add(key, "in", ()))
    before = len(graph.nodes)
    with ExitStack() as opened, torch.enable_grad():
        for name, module in _boxes([wiring.at(number)[0], *layer.connections()]):
            opened.callback(module.register_forward_pre_hook(recorder.enter).remove)
            opened.callback(module.register_forward_hook(partial(recorder.leave, name)).remove)
        for kind, connection in zip(layer.kinds, layer.connections(), strict=True):
            box = partial(recorder.box_sublayer, SUBLAYERS[kind])
            opened.callback(connection.register_forward_pre_hook(box).remove)
        with recorder:
            s, _ = layer(s, context)
            s = wiring.after_layer(number, s)
    used = {n for node in graph.nodes[before:] for n in node.inputs}
    chains = {_chain(graph.nodes[n].label) for n in range(before) if n in used}
    for key, value in s.items():
        made_by = recorder.node_of(value)
        if made_by is not None and made_by >= before and _chain(key) in chains:
            graph.add(key, "out", [made_by])
    return without_unused(graph), s


def _chain(key: str) -> str:
    """Return the name of the thing that grows: y0, y1, ... are one."""
    return re.sub(r"\d+$", "", key)


def _boxes(owners: Iterable[nn.Module]) -> Iterable[tuple[str, nn.Module]]:
    """Yield the modules that the wiring's own modules call, with names; those of a container carry its name too."""
    for owner in owners:
        for name, child in owner.named_children():
            if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                boxes = _boxes([child])
                yield from ((f"{name}.{inner}" if inner.isdigit() else inner, module) for inner, module in boxes)
            else:
                yield name, child


def _unreached(wanting: list[Tensor], outputs: Iterable[Tensor]) -> list[Tensor]:
    """Return those of the tensors that no gradient of the outputs reaches, which needs no values."""
    reached = [t for t in outputs if t.requires_grad]
    if not wanting or not reached:
        return wanting
    total = torch.stack([t.float().sum() for t in reached]).sum()
    gradients = torch.autograd.grad(total, wanting, retain_graph=True, allow_unused=True)
    return [t for t, gradient in zip(wanting, gradients, strict=True) if gradient is None]


def _of_parameter(function: str, parameter: str, args: Any) -> str:
    """Return what a diagram calls the outcome of a function of one parameter: (1 + gain), sigmoid(gain)."""
    numbers = [a for a in args if isinstance(a, (int, float))]
    if function in SAME or (function in TIMES_ONE and 1.0 in numbers):
        return parameter
    sign = SIGNS.get(function.removeprefix("r"))
    if sign is None or not numbers:
        return parameter if sign else f"{function}({parameter})"
    first = function.startswith("r") or sign in "+×" or args[0] is numbers[0]
    return f"({numbers[0]:.3g} {sign} {parameter})" if first else f"({parameter} {sign} {numbers[0]:.3g})"


class _Recorder(TorchFunctionMode):
    """Follows tensors from box to box."""

    def __init__(self, graph: Graph, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.graph = graph
        self.nodes: dict[int, int] = {}
        self.names = {id(p): name.split(".")[-1] for name, p in parameters.items()}
        self.kept: list[Any] = []  # alive, so that no other tensor has the id of one of them
        self.inside: list[set[int]] = []
        self.norms_inside = 0

    def know(self, tensor: Tensor, node: int) -> None:
        self.nodes[id(tensor)] = node
        self.kept.append(tensor)

    def node_of(self, value: Any) -> int | None:
        return self._source(value) if id(value) in self.nodes else None

    def _source(self, tensor: Tensor) -> int:
        """Return the node of a known tensor, or a node that says that the tensor is cut off from the gradient.

        Functions with gradients of their own run without autograd, which says nothing of them.
        """
        node = self.nodes[id(tensor)]
        cut = torch.is_grad_enabled() and tensor.is_floating_point() and not tensor.requires_grad
        if cut and self.graph.nodes[node].kind != "stop":
            node = self.nodes[id(tensor)] = self.graph.add("stop-gradient", "stop", [node])
        return node

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, Tensor)]
        given = list(_tensors([*args, *(kwargs or {}).values()]))
        known = [self._source(t) for t in given if id(t) in self.nodes]
        if self.inside:
            self.inside[-1].update(known)
            self.norms_inside += func.__name__ in NORM_FUNCTIONS
            return out
        name = func.__name__.strip("_") if func.__name__ != "__getitem__" else func.__name__
        if not made or func.__name__ == "__get__":
            return out
        if not known:
            self._name_what_is_of_parameters(name, args, given, made)
        elif (
            name in SAME
            or (name in TIMES_ONE and 1.0 in [a for a in args if isinstance(a, float)])
            or (all(id(t) in self.nodes for t in made) and not func.__name__.endswith("_"))  # in place it is another
        ):
            for t in made:
                self.nodes.setdefault(id(t), known[0])
                self.kept.append(t)
        else:
            if name == "addcmul" and len(known) > 1 and known[0] == self.node_of(args[0]):
                product, _ = self._describe("mul", (), list(_tensors(args[1:])), len(known) - 1)
                known = [known[0], self.graph.add(product, "operation", known[1:])]
                name = "add"
            label, kind = self._describe(name, args, given, len(known))
            node = self.graph.add(label, kind, known)
            for t in made:
                self.know(t, node)
        return out

    def _name_what_is_of_parameters(self, name: str, args: Any, given: list[Tensor], made: list[Tensor]) -> None:
        names = {self.names[id(t)] for t in given if id(t) in self.names}
        for t in made if len(names) == 1 else ():
            self.names.setdefault(id(t), _of_parameter(name, next(iter(names)), args))
            self.kept.append(t)

    def _describe(self, name: str, args: Any, given: list[Tensor], known: int) -> tuple[str, str]:
        sign = SIGNS.get(name, SIGNS.get(name.removeprefix("r")))
        if name in NORM_FUNCTIONS:
            return NORM_FUNCTIONS[name], "norm"
        if sign is None:
            return {"cat": "concat"}.get(name, name), "operation"
        if known > 1 and sign in "+-":
            return sign, "sum"
        factor = next((f"{a:.3g}" for a in args if isinstance(a, (int, float))), "")
        factor = next((self.names[id(t)] for t in given if id(t) in self.names), factor)
        if sign in "-÷" and (name.startswith("r") or (known == 1 and self.node_of(args[0]) is None)):
            return f"{factor} {sign}".strip(), "operation"
        return f"{sign} {factor}".strip(), "operation"

    def enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # of a stream, copies: one entry may be made of another, and not be read itself
        inputs = tuple({k: v.clone() for k, v in i.items()} if isinstance(i, dict) else i for i in inputs)
        self.inside.append({self._source(t) for t in _tensors(inputs) if id(t) in self.nodes})
        return inputs

    def leave(self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        sources = self.inside.pop()
        if self.inside:
            self.inside[-1] |= sources
            self.norms_inside += is_norm(module)
            return
        if isinstance(module, (nn.Dropout, nn.Identity)):
            node = next(iter(sources))
        else:
            norm = is_norm(module)
            kind = NORM_LABELS.get(type(module).__name__, "LN")
            wanting = [t for t in _tensors(inputs) if t.requires_grad]
            unreached = _unreached(wanting, _tensors([output]))
            stops = bool(wanting) and len(unreached) == len(wanting)
            if not stops and isinstance(inputs[0], dict):  # of a whole stream, not everything is read
                sources -= {self.nodes[id(t)] for t in unreached}
            role = "stop" if stops else "norm" if norm else "module"
            node = self.graph.add(kind if norm else name, role, sources)
        for tensor in _tensors([output]):
            self.know(tensor, node)

    def box_sublayer(self, name: str, module: nn.Module, inputs: tuple[Stream, SubLayer]) -> tuple[Stream, SubLayer]:
        stream, sublayer = inputs

        def boxed(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            self.enter(module, (h,))
            self.norms_inside = 0
            y, weights, after = sublayer(h, s)
            label = f"{name}, LN inside" if self.norms_inside else name
            node = self.graph.add(label, "sublayer", self.inside.pop())
            for tensor in [y, *(v for k, v in after.items() if s.get(k) is not v)]:
                self.know(tensor, node)
            return y, weights, after

        return stream, boxed


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
