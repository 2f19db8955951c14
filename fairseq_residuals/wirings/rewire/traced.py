"""Layers of a model, recognised by what its modules are given, and what they return.

What is given the stream, or a norm of it, begins a sub-layer; that to whose output the stream is added ends it. The sum
is what the next module is given, or what the layer returns. Where two outputs are added to the stream at once, their
branches are side by side, as parts of one sub-layer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from fairseq_residuals.wirings.blocks.models import evaluating
from fairseq_residuals.wirings.core.base import Kind
from fairseq_residuals.wirings.core.norms import looks_like_norm
from fairseq_residuals.wirings.rewire.blocks import LISTS, Blocks, SubLayerNames, one_stack_or_pair, unknown_layers
from fairseq_residuals.wirings.rewire.keep import multiple
from fairseq_residuals.wirings.rewire.norms import FUNCTIONS
from fairseq_residuals.wirings.rewire.outputs import TOLERANCE, Dropouts, acting, drawn, outputs_of
from fairseq_residuals.wirings.rewire.passes import fed, first
from fairseq_residuals.wirings.utils.torch_private import times_written

PROJECTIONS = (
    ("q_proj", "query", "wq", "q", "to_q", "c_q", "q_lin", "W_query"),
    ("k_proj", "key", "wk", "k", "to_k", "c_k", "k_lin", "W_key"),
    ("v_proj", "value", "wv", "v", "to_v", "c_v", "v_lin", "W_value"),
)
"""Usual names of the linear maps in attention that make queries, keys and values."""


@dataclass(eq=False)
class Call:
    """One call of a module, in a model that runs."""

    name: str
    module: nn.Module
    args: list[Tensor | None]
    """What it was fed, and its other arguments; None for those that are no tensors of numbers."""
    returned: Tensor | None = None
    times: int = 1
    """How often its module is called in all."""
    inside: list[Call] = field(default_factory=list)
    """The calls that this one makes."""

    @property
    def given(self) -> Tensor | None:
        """What it was fed."""
        return self.args[0]

    @property
    def is_norm(self) -> bool:
        """Whether it is a norm by all that is known."""
        return looks_like_norm(self.module, self.name)

    def parts(self, deep: bool) -> Iterator[Call]:
        """Yield the calls inside, and in their place what is inside of those with a norm or a sum of their own.

        Args:
            deep: also of those that end by a module with a sum.
        """
        for call in self.inside:
            begins_by_norm = call.inside and call.inside[0].is_norm and same(call.given, call.inside[0].given)
            yield from call.parts(deep) if begins_by_norm or call.adds(deep) else [call]

    def adds(self, deep: bool) -> bool:
        """Return whether it returns a sum of what it is given and what its last module returns, or a norm of it."""
        if not self.inside:
            return False
        *others, last = self.inside
        sums = [(self.returned, last.returned), *((last.given, end.returned) for end in others[-1:] if last.is_norm)]
        # zeros add nothing
        found = any(same(total, x, y) and not same(total, y) for total, y in sums for x in self.args)
        return found or (deep and last.adds(deep))


def trace_blocks(model: nn.Module, batch: Any) -> list[Blocks]:
    """Return the layers of a model that runs them one after the other.

    Args:
        batch: what the model is called with.

    Raises:
        UserError: none do, or they add other things up; or there are several stacks that are no pair.
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
                found += _blocks(path, [one[0] for one in made], calls)
    if any(blocks.crosses for blocks in found):
        found = [replace(blocks, stack="decoder" if blocks.crosses else "encoder") for blocks in found]
    if not found:
        raise unknown_layers(model)
    kinds = {type(layer) for blocks in found for layer in lists[blocks.layers].children()}
    homes = (name.rpartition(".")[0] for name, made in calls.items() if type(made[0].module) in kinds)
    return one_stack_or_pair(model, found, dict.fromkeys(home for home in homes if home in lists))


def calls_of(model: nn.Module, batch: Any) -> dict[str, list[Call]]:
    """Call a model, and return the calls of each of its modules by name."""
    made: dict[str, list[Call]] = {}
    running: list[Call] = []
    copies: MutableMapping[Tensor, tuple[int, Tensor]] = WeakTensorKeyDictionary()

    def copied(value: Any) -> Tensor | None:
        """Return a copy, for some modules write into what they are given; the same one while it is right."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return None
        written, copy = copies.get(value, (-1, value))
        if written != times_written(value):
            copy = value.detach().clone()
            copies[value] = times_written(value), copy
        return copy

    def begin(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        call = Call(name, module, [copied(value) for value in (fed(args, kwargs), *args, *kwargs.values())])
        for outer in running[-1:]:
            outer.inside.append(call)
        running.append(call)
        made.setdefault(name, []).append(call)

    def end(module: nn.Module, args: Any, output: Any) -> None:
        running.pop().returned = copied(first(output))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            begins = module.register_forward_pre_hook(lambda *call, name=name: begin(name, *call), with_kwargs=True)
            hooks.callback(begins.remove)
            hooks.callback(module.register_forward_hook(end).remove)
        outputs_of(model, batch)
    for calls in made.values():
        for call in calls:
            call.times = len(calls)
    return made


def same(x: Tensor | None, *parts: Tensor | None) -> bool:
    """Return whether a tensor is, up to rounding, the sum of others; some experts see all positions in one row."""
    if x is None or not x.numel() or any(part is None or part.numel() != x.numel() for part in parts):
        return False
    whole = reduce(torch.add, [part.reshape(x.shape) for part in parts if part is not None])
    differences = (x.float() - whole.float()).abs()
    return bool(differences.max() <= TOLERANCE * x.float().std()) or not differences.any()


def _blocks(path: str, layers: Sequence[Call], calls: Mapping[str, list[Call]]) -> Iterator[Blocks]:
    for deep, post in itertools.product((False, True), repeat=2):
        sublayers, *others = dict.fromkeys(tuple(_sublayers(layer, post, deep)) for layer in layers)
        if all((sublayers, *others)):
            outside = (one for name, one in calls.items() if not name.startswith(f"{path}."))
            norms = (call for one in outside for call in one if call.is_norm)
            above = next((call.name for call in norms if same(call.given, layers[-1].returned)), "")
            stack = _stack(layers[0].module, calls[""][0].args)
            yield Blocks(path, sublayers, above, post, stack, others=tuple(others))
            return


def _stack(layer: nn.Module, given: Sequence[Tensor | None]) -> Literal["encoder", "decoder"]:
    """Return what a stack without cross-attention is, by what its layers say, or where the model is given pictures."""
    causal = {module.is_causal for module in layer.modules() if hasattr(module, "is_causal")}
    pictures = any(x is not None and x.dim() == 4 for x in given)
    sees_all = causal == {False} or (not causal and (pictures or isinstance(layer, nn.TransformerEncoderLayer)))
    return "encoder" if sees_all else "decoder"


def _sublayers(layer: Call, post: bool, deep: bool) -> list[SubLayerNames]:
    """Return the sub-layers of a layer; none where its calls do not tell them.

    Args:
        post: whether norms follow the sums.
        deep: as for :meth:`Call.parts`.
    """
    parts = list(layer.parts(deep))
    x, begun, found = layer.given, list[Call](), list[SubLayerNames]()

    def ended(given: Tensor | None, norm: str = "") -> Tensor | None:
        """Add the sub-layer whose output, or a multiple of it, has been added to the stream.

        Args:
            given: the sum, or a norm of it by a function.
            norm: the name of the norm that is given the sum.

        Returns:
            The sum; None where there is none.
        """
        if not begun or (begun[-1].is_norm and same(given, begun[-1].returned)):
            return None
        bare = not begun[-1].is_norm  # of x + norm(x), the norm is that of x
        for split in (0, *reversed(range(1, len(begun)))):
            ends = [call.returned for call in (*begun[:split][-1:], *begun[-1:])]
            for dropout, scale, ys in _multiples(layer, ends):
                total = next((s for s in _sums(x, ys) if same(given, s) or (bare and _function(given, s))), None)
                if total is not None:
                    sub = _described(layer, x, norm, begun, split)
                    found.append(replace(sub, dropout=dropout or sub.dropout, scale=scale or sub.scale))
                    return total
        return None

    for call in parts:
        total = ended(call.given, call.name if post else "")
        if total is not None:
            if post and not call.is_norm:
                return []
            x, begun = (call.returned, []) if post else (total, [call])
        # others make masks and positions
        elif begun or same(call.given, x) or (not post and _function(call.given, x)):
            begun.append(call)
    if not (not begun and same(layer.returned, x) if post else ended(layer.returned) is not None):
        return []
    names = [name for sub in found for name in {*sub.needs} - {""}]
    if not found or len({*names}) < len(names) or not all(sub.enter for sub in found[1:]):
        return []  # a module is called in several places, or two norms are given what no module is
    if len({sub.kind for sub in found}) == len(found):
        return found
    return [replace(found[0], kind="self"), replace(found[1], kind="ffn")] if len(found) == 2 else []


def _multiples(layer: Call, ends: Sequence[Tensor | None]) -> Iterator[tuple[str, str, list[Tensor]]]:
    """Yield multiples of outputs, each with the attribute of the layer, of a dropout or a scale, that says by what."""
    ys = [y for y in ends if y is not None]
    if len(ys) < len(ends):
        return
    yield "", "", ys
    for name, number in vars(layer.module).items():
        if isinstance(number, float) and abs(number) >= 0.01:  # less could hide in rounding
            yield name, "", [(1 - number / 2) * y for y in ys]  # as Dropouts has it
            yield "", name, [number * y for y in ys]
    for name, factor in layer.module.named_parameters(recurse=False):
        if all(y.shape[y.dim() - factor.dim() :] == factor.shape for y in ys):
            yield "", name, [factor * y for y in ys]


def _sums(x: Tensor | None, ys: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the sum of the stream and of outputs, some of which are of all positions in one row; in either order."""
    if x is not None and all(y.numel() == x.numel() for y in ys):
        parts = [x, *(y.reshape(x.shape) for y in ys)]
        yield reduce(torch.add, parts)
        yield reduce(torch.add, parts[::-1])


def _function(given: Tensor | None, x: Tensor | None) -> str:
    """Return the name of the function by which a module is given a norm of the stream; empty where it is not."""
    if x is None or same(given, x):
        return ""
    norms = {name: norm(x.size(-1), elementwise_affine=False) for name, norm in FUNCTIONS.items()}
    return next((name for name, norm in norms.items() if same(given, norm(x))), "")


def _described(layer: Call, x: Tensor | None, norm: str, calls: list[Call], split: int) -> SubLayerNames:
    """Return a sub-layer.

    Args:
        norm: the name of the norm that follows the sum; empty where none does.
        split: of two branches side by side, the number of calls of the first one; else 0.
    """
    norms = [] if norm else [call for call in calls if call.is_norm and same(call.given, x)]
    if not split:
        return _branch(layer, x, norm, norms, calls)
    sub, beside = (_branch(layer, x, norm, norms, branch) for branch in (calls[:split], calls[split:]))
    own = beside.norm if beside.norm != sub.norm else ""
    return replace(
        sub,
        enter="" if own or norm else sub.norm,
        leave=sub.leave or sub.enter,
        beside=beside.leave or beside.enter,
        norm_beside=own,
        dropout=beside.dropout,
    )


def _branch(layer: Call, x: Tensor | None, norm: str, norms: list[Call], calls: list[Call]) -> SubLayerNames:
    """Return a branch as a sub-layer.

    Args:
        norms: calls of norms that are given the stream, one of which may begin the branch.
    """
    within, dropout, scale = len(layer.name) + 1, "", ""
    rest = [call for call in calls if call not in norms]
    own = next((call for call in norms if rest and same(rest[0].given, call.returned)), None)
    if own is not None:
        norm, calls = own.name, rest
    while len(calls) > 1 and calls[-1].times > 1 and not [*calls[-1].inside, *calls[-1].module.parameters()]:
        *calls, last = calls  # one dropout of several sub-layers
        dropout = dropout or last.name[within:]
        names = (name for _, name, (y,) in _multiples(layer, [calls[-1].returned]) if same(last.given, y))
        scale = scale or next(names, "")
    enter, leave = calls[0], calls[-1]
    inner = _last_linear(calls, leave.returned) or _last_linear(enter.inside, enter.returned)
    name = enter.name[within:]
    query, key, value = (
        next((f"{name}.{usual}" for usual in names if usual in enter.module._modules), "") for names in PROJECTIONS
    )
    left = "" if leave is enter else leave.name[within:]
    function: Any = "" if norm else _function(enter.given, x)
    kind = _kind(f"{name} {left}".lower(), enter)
    return SubLayerNames(kind, name, left, norm[within:], dropout, query, key, value, inner[within:], function, scale)


def _last_linear(calls: list[Call], returned: Tensor | None) -> str:
    """Return the name of the last linear map whose output is ``returned``, or a multiple of it; empty without one."""
    for call in reversed(calls):
        if name := _last_linear(call.inside, returned):
            return name
        weight = getattr(call.module, "weight", None)
        is_linear = hasattr(call.module, "in_features") or (isinstance(weight, Tensor) and weight.dim() == 2)
        pair = [y.reshape(1, -1) for y in (call.returned, returned) if y is not None]
        if is_linear and len(pair) == 2 and multiple(*pair) is not None:
            return call.name
    return ""


def _kind(name: str, enter: Call) -> Kind:
    """Return the kind of a sub-layer with modules that are called so; cross-attention is given another sequence too."""
    x = enter.given
    reads_memory = x is not None and any(y is not None and y.dim() == x.dim() and not same(y, x) for y in enter.args)
    if reads_memory and re.search("cross|encoder|enc_?dec|multihead_attn", name):
        return "cross"
    return "self" if re.search(r"att|mix|\bsa\b|\bmha\b", name) else "ffn"
