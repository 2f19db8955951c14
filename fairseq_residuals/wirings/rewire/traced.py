"""Layers of a model of one's own, recognised by what its modules are given, and what they return.

What is given the stream, or a norm of it, begins a sub-layer; that to whose output the stream is added ends it. The sum
is what the next module is given, or what the layer returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.models import evaluating
from fairseq_residuals.wirings.core.base import Kind
from fairseq_residuals.wirings.core.norms import looks_like_norm
from fairseq_residuals.wirings.rewire.blocks import LISTS, Blocks, SubLayerNames, one_stack_or_pair
from fairseq_residuals.wirings.rewire.outputs import TOLERANCE, Dropouts, acting, difference_of, drawn, outputs_of
from fairseq_residuals.wirings.rewire.passes import fed, first

PROJECTIONS = (
    ("q_proj", "query", "wq", "q", "to_q", "c_q", "W_query"),
    ("k_proj", "key", "wk", "k", "to_k", "c_k", "W_key"),
    ("v_proj", "value", "wv", "v", "to_v", "c_v", "W_value"),
)
"""Usual names of the linear maps in attention that make queries, keys and values."""


@dataclass(eq=False)
class Call:
    """One call of a module, in a model that runs."""

    name: str
    module: nn.Module
    given: Tensor | None = None
    returned: Tensor | None = None
    inside: list[Call] = field(default_factory=list)
    """The calls that this one makes."""

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm by all that is known."""
        return looks_like_norm(self.module, self.name)

    @property
    def is_bare(self) -> bool:
        """Whether it is something like a dropout."""
        return not self.inside and not [*self.module.parameters()]

    def parts(self) -> Iterator[Call]:
        """Yield the calls inside, and in their place what is inside of those with a norm or a sum of their own."""
        for call in self.inside:
            begins_by_norm = call.inside and call.inside[0].is_norm and same(call.given, call.inside[0].given)
            adds = call.inside and same(call.returned, call.given, call.inside[-1].returned)
            yield from call.parts() if begins_by_norm or adds else [call]


def trace_blocks(model: nn.Module, batch: Any) -> list[Blocks]:
    """Return the layers of a model that runs them one after the other; none where they add other things up.

    Args:
        batch: what the model is called with.
    """
    lists = {path: module for path, module in model.named_modules() if isinstance(module, LISTS)}
    layers = [layer for module in lists.values() for layer in module.children() if [*layer.children()]]
    with evaluating(model), drawn(model, ()), Dropouts(), acting(layers):
        calls = calls_of(model, batch)
    found: list[Blocks] = []
    for path, module in lists.items():
        made = [calls.get(f"{path}.{name}", []) for name, _ in module.named_children()]
        is_within = any(path.startswith(f"{blocks.layers}.") for blocks in found)
        if made and not is_within and all(len(one) == 1 for one in made):
            found += _blocks(path, [one[0] for one in made], [call for one in calls.values() for call in one])
    if any(blocks.crosses for blocks in found):
        found = [blocks if blocks.crosses else replace(blocks, stack="encoder") for blocks in found]
    return one_stack_or_pair(model, found)


def calls_of(model: nn.Module, batch: Any) -> dict[str, list[Call]]:
    """Call a model, and return the calls of each of its modules by name."""
    made: dict[str, list[Call]] = {}
    running: list[Call] = []

    def begin(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        call = Call(name, module, _copied(fed(args, kwargs)))
        for outer in running[-1:]:
            outer.inside.append(call)
        running.append(call)
        made.setdefault(name, []).append(call)

    def end(module: nn.Module, args: Any, output: Any) -> None:
        running.pop().returned = _copied(first(output))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            begins = module.register_forward_pre_hook(lambda *call, name=name: begin(name, *call), with_kwargs=True)
            hooks.callback(begins.remove)
            hooks.callback(module.register_forward_hook(end).remove)
        outputs_of(model, batch)
    return made


def _copied(value: Any) -> Tensor | None:
    # some modules write into what they are given
    return value.detach().clone() if isinstance(value, Tensor) and value.is_floating_point() else None


def same(x: Tensor | None, *parts: Tensor | None) -> bool:
    """Return whether a tensor is, up to rounding, the sum of others; some experts see all positions in one row."""
    if x is None or any(part is None or part.numel() != x.numel() for part in parts):
        return False
    whole = reduce(torch.add, [part.reshape(x.shape) for part in parts if part is not None])
    return difference_of([x.float()], [whole.float()]) <= TOLERANCE


def _blocks(path: str, layers: Sequence[Call], calls: Iterable[Call]) -> Iterator[Blocks]:
    for post in (False, True):
        sublayers, *others = dict.fromkeys(tuple(_sublayers(layer, post)) for layer in layers)
        if all((sublayers, *others)):
            above = (call.name for call in calls if call.is_norm and same(call.given, layers[-1].returned))
            yield Blocks(path, sublayers, next(above, ""), post, others=tuple(others))
            return


def _sublayers(layer: Call, post: bool) -> list[SubLayerNames]:
    """Return the sub-layers of a layer; none where its calls do not tell them.

    Args:
        post: whether norms follow the sums.
    """
    parts = list(layer.parts())
    called = [call.name for call in parts]
    x, begun, found = layer.given, list[Call](), list[SubLayerNames]()

    def ended(total: Tensor | None, norm: str = "") -> bool:
        """Add the sub-layer whose output, or a multiple of it, has been added to the stream; False where it was not."""
        y = begun[-1].returned if begun else None
        for dropout, scale, factor in _multiples(layer.module):
            if y is not None and same(total, x, factor * y):
                sub = _described(layer, norm, begun, called)
                found.append(replace(sub, dropout=dropout or sub.dropout, scale=scale))
                return True
        return False

    for call in parts:
        if ended(call.given, call.name if post else ""):
            if post and not call.is_norm:
                return []
            x, begun = (call.returned, []) if post else (call.given, [call])
        # others make masks and positions
        elif begun or same(call.given, x):
            begun.append(call)
    if not (not begun and same(layer.returned, x) if post else ended(layer.returned)):
        return []
    names = [name for sub in found for name in sub.needs if name]
    if not found or len({*names}) < len(names):
        return []  # a module is called in several places
    return [replace(sub, kind=kind) for sub, kind in zip(found, _kinds([sub.enter for sub in found]), strict=False)]


def _multiples(layer: nn.Module) -> Iterator[tuple[str, str, float]]:
    """Yield what a branch may be multiplied by, with the attribute, of a dropout or a scale, that says so."""
    yield "", "", 1.0
    for name, number in vars(layer).items():
        if isinstance(number, float) and abs(number) >= 0.01:  # less could hide in rounding
            yield name, "", 1 - number / 2  # as Dropouts has it
            yield "", name, number


def _described(layer: Call, norm: str, calls: list[Call], called: list[str]) -> SubLayerNames:
    within, dropout = len(layer.name) + 1, ""
    if not norm and len(calls) > 1 and calls[0].is_norm and same(calls[1].given, calls[0].returned):
        norm, calls = calls[0].name, calls[1:]
    if len(calls) > 1 and calls[-1].is_bare and called.count(calls[-1].name) > 1:  # one dropout of several sub-layers
        calls, dropout = calls[:-1], calls[-1].name[within:]
    enter, leave = calls[0], calls[-1]
    inner = _last_linear([enter] if enter.inside else calls, enter.returned if enter.inside else leave.returned)
    name = enter.name[within:]
    query, key, value = (
        next((f"{name}.{usual}" for usual in names if hasattr(enter.module, usual)), "") for names in PROJECTIONS
    )
    left = "" if leave is enter else leave.name[within:]
    return SubLayerNames("ffn", name, left, norm[within:], dropout, query, key, value, inner[within:])


def _last_linear(calls: list[Call], returned: Tensor | None) -> str:
    """Return the name of the linear map whose output is ``returned``, but for dropouts; empty where there is none."""
    for call in reversed(calls):
        if not same(call.returned, returned):
            return ""
        if hasattr(call.module, "in_features"):
            return call.name
        if not call.is_bare:
            return _last_linear(call.inside, call.returned)
        returned = call.given
    return ""


def _kinds(names: Sequence[str]) -> tuple[Kind, ...]:
    """Return the kinds of sub-layers by their names, or by their order."""
    kinds: list[Kind] = []
    for name in names:
        crossing, mixing = re.search("cross|enc", name), re.search(r"att|mix|\bsa\b|\bmha\b", name)
        kinds.append("cross" if crossing else "self" if mixing else "ffn")
    if len(set(kinds)) == len(kinds):
        return tuple(kinds)
    return ("self", "ffn") if len(kinds) == 2 else ()
