"""The values of expressions at one place of a pass, with functions, parameters and sub-layers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Kind
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.stack import Stack
from tests.golden_check.equations.functions import FUNCTIONS, NORM_FUNCTIONS, NORMS, Value
from tests.golden_check.equations.names import Owners, is_norm_name
from tests.golden_check.equations.syntax import (
    Call,
    Comparison,
    Concatenation,
    Edit,
    EquationError,
    Equations,
    Expression,
    Name,
    Number,
    Operation,
    Range,
    Sum,
    mentioned,
)

Inside = Callable[[str, Tensor], Tensor]
"""The name of an intermediate result and its value; returns what becomes of it."""
INSIDE = {"SA": ("q", "k", "v", "S", "o"), "CA": ("q", "k", "v", "S", "o"), "FFN": ("a",)}
"""Queries, keys, values (T, B, C) after projection; scores (B, H, T, S) before masks; outputs of the heads side by side
(T, B, C); of the FFN what its activation gives (T, B, F)."""


def run_sublayer(layer: Any, kind: str, h: Tensor, context: Context, inside: Inside) -> Tensor:
    """Return what the sub-layer makes of ``h`` (T, B, C), before its dropout."""
    if kind == "FFN":
        return layer.fc2(inside("a", layer.activation_fn(layer.fc1(h))))  # type: ignore[no-any-return]
    if kind == "SA":
        return _attention(layer.self_attn, h, h, context.self_attn_mask, context.padding_mask, inside)
    assert context.memory is not None
    return _attention(layer.encoder_attn, h, context.memory, None, context.memory_padding_mask, inside)


def _attention(
    attn: Any, h: Tensor, memory: Tensor, mask: Tensor | None, padding: Tensor | None, inside: Inside
) -> Tensor:
    """softmax(q k^T / sqrt(channels of a head) + mask) v for every head, then the output's projection."""
    q, k, v = inside("q", attn.q_proj(h)), inside("k", attn.k_proj(memory)), inside("v", attn.v_proj(memory))
    q, k, v = (x.unflatten(-1, (attn.num_heads, -1)) for x in (q, k, v))
    scores = inside("S", torch.einsum("tbhc,sbhc->bhts", q, k) / q.size(-1) ** 0.5)
    if mask is not None:
        scores = scores + mask
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None], torch.finfo(scores.dtype).min)
    heads = torch.einsum("bhts,sbhc->tbhc", scores.softmax(-1), v)
    return attn.out_proj(inside("o", heads.flatten(-2)))  # type: ignore[no-any-return]


KINDS: dict[Kind, str] = {"self": "SA", "cross": "CA", "ffn": "FFN"}
OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "^": operator.pow,
    "mod": operator.mod,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass
class Expressions:
    """Evaluate expressions with the variables of a pass."""

    equations: Equations
    stack: Stack
    context: Context
    variables: dict[str, Value]
    layer: int | None = None
    kind: Kind | None = None
    ranges: dict[str, range] = field(default_factory=dict)
    """Of the sums that are being evaluated, by their index."""

    edits: tuple[Edit, ...] = ()
    """What holds in the current sub-layer, wherever it is called."""

    def __post_init__(self) -> None:
        shape = self.stack.shape
        sublayers = 2 + shape.cross * (shape.stack == "decoder")
        sublayers -= not self.stack.wiring.has_ffn
        self.constants: dict[str, float] = {
            "L": shape.depth,
            "K": shape.depth * sublayers,
            "N": shape.enc_depth,
            "M": shape.dec_depth,
            "d": shape.dim,
            "heads": shape.heads,
        }

    def per_kind(self, name: str) -> str:
        """Return the variable of this kind of sub-layer, if the name ends in _F."""
        return f"{name[:-1]}{KINDS[self.kind]}" if name.endswith("_F") and self.kind is not None else name

    def value(self, part: Expression | None, owners: Owners, edits: tuple[Edit, ...] = ()) -> Value:
        if isinstance(part, Number):
            return part.value
        if isinstance(part, Name):
            return self._named(part, owners)
        if isinstance(part, Operation):
            return self.operate(part, owners, edits)
        if isinstance(part, Sum):
            return self._sum(part, owners, edits)
        if isinstance(part, Concatenation):
            return self._concatenate(part, owners)
        assert isinstance(part, Call)
        return self._call(part, owners, edits)

    def operate(self, part: Operation | Comparison, owners: Owners, edits: tuple[Edit, ...] = ()) -> Value:
        return OPERATORS[part.operator](self.value(part.left, owners, edits), self.value(part.right, owners, edits))

    def _sum(self, part: Sum, owners: Owners, edits: tuple[Edit, ...]) -> Value:
        outer, self.ranges = self.ranges, self.ranges | {part.over.name: self.range(part.over, owners)}
        terms = [self.value(part.term, owners, edits) for _ in self._each(part.over.name, self.ranges[part.over.name])]
        self.ranges = outer
        return sum(terms[1:], terms[0])

    def _each(self, name: str, values: range) -> Iterator[int]:
        """Yield the values, each while ``name`` has it."""
        outer = self.variables
        for value in values:
            self.variables = outer | {name: value}
            yield value
        self.variables = outer

    def _softmax(self, name: str, argument: Expression, owners: Owners) -> Value:
        """Of the summand at hand among those of the sum over ``name``."""
        if name not in self.ranges:
            raise EquationError(f"softmax_{name} is not within a sum over {name}")
        at, values = self.variables[name], self.ranges[name]
        logits = torch.stack([self.value(argument, owners) for _ in self._each(name, values)])
        return logits.softmax(0)[at - values.start]

    def _concatenate(self, part: Concatenation, owners: Owners) -> Tensor:
        if part.over is None:
            return torch.cat([self.value(p, owners) for p in part.parts], -1)
        values = self.range(part.over, owners)
        return torch.cat([self.value(part.parts[0], owners) for _ in self._each(part.over.name, values)], -1)

    def _call(self, part: Call, owners: Owners, edits: tuple[Edit, ...]) -> Value:
        values = [] if part.name.startswith("softmax_") else [self.value(a, owners, edits) for a in part.arguments]
        if part.name.startswith("softmax_"):
            return self._softmax(part.name.removeprefix("softmax_"), part.arguments[0], owners)
        if part.name in ("F", "F'"):
            return self._sublayer(part.name, values[0], owners, edits)
        if part.name == "drop":
            return self._layer().dropout_module(values[0])
        if part.name == "per_head":
            return values[0].repeat_interleave(self.stack.shape.dim // self.stack.shape.heads)
        if is_norm_name(part.name):
            norm = owners.norm(part.name, self.index(part.index, owners))
            return NORMS[self.equations.norm_type](values[0], norm)
        if part.name in NORM_FUNCTIONS and "norm_eps" in self.variables and len(values) == 1:
            values.append(self.variables["norm_eps"])
        if part.name in FUNCTIONS:
            return FUNCTIONS[part.name](*values)
        return _multiply(self._named(Name(part.name, part.index), owners), values[0])

    def _named(self, part: Name, owners: Owners) -> Value:
        name, index = self.per_kind(part.name), self.index(part.index, owners)
        value: Value = self.variables.get(name, self.constants.get(name))
        if isinstance(value, dict) and index:
            if index not in value:
                raise EquationError(f"{part.name}{list(index)} has no value yet; there are {sorted(value)}")
            return value[index]
        if value is None:
            value = owners.parameter(part.name)
        if value is None:
            value = owners.option(part.name)
        if value is None:
            raise EquationError(
                f"{part.name!r} is none of the variables {', '.join(self.variables)}, and no parameter or option at"
                f" {owners.modules[0]}; a parameter of another name needs an entry in the variant's `symbols`"
            )
        for i in index:
            value = value[str(i)] if isinstance(value, nn.ParameterDict) else value[i]
        return value

    def index(self, index: tuple[Expression, ...], owners: Owners) -> tuple[int, ...]:
        return tuple(int(self.value(i, owners)) for i in index)

    def range(self, over: Range, owners: Owners) -> range:
        first, last = self.index((over.first, over.last), owners)
        return range(first, last + 1)

    # sub-layers

    def _layer(self) -> Any:
        if self.layer is None:
            raise EquationError("there is no sub-layer between layers")
        return self.stack[self.layer]

    def _sublayer(self, name: str, h: Tensor, owners: Owners, edits: tuple[Edit, ...]) -> Tensor:
        layer = self._layer()
        assert self.kind is not None
        kind = KINDS[self.kind]
        results = INSIDE[kind]
        for edit in (*self.edits, *edits):
            if not self._stage(edit) & set(results):
                raise EquationError(f"{edit.target} and what becomes of it are no part of {kind}: {', '.join(results)}")

        def inside(result: str, value: Tensor) -> Tensor:
            for edit in (*self.edits, *edits):
                if result in self._stage(edit):
                    edited = self._edited(edit, result, value, owners)
                    if edit.target == result:
                        value = edited
                    else:
                        self.variables[self.per_kind(edit.target)] = edited
            return value

        y = run_sublayer(layer, kind, h, self.context, inside)
        return layer.dropout_module(y) if name == "F" else y  # type: ignore[no-any-return]

    def _stage(self, edit: Edit) -> set[str]:
        """Return the intermediate result that an edit replaces, or that the variable it sets is made of."""
        inside = {result for results in INSIDE.values() for result in results}
        return {edit.target} if edit.target in inside else mentioned(edit.value) & inside

    def _edited(self, edit: Edit, result: str, value: Tensor, owners: Owners) -> Tensor:
        split = value.unflatten(-1, (self.stack.shape.heads, -1)) if edit.per_head else value
        outer, self.variables = self.variables, self.variables | {result: split}
        edited: Tensor = self.value(edit.value, owners)
        self.variables = outer
        return edited.flatten(-2) if edit.per_head else edited


def _multiply(matrix: Any, x: Tensor) -> Tensor:
    """Apply a linear map, or a matrix (outputs, C), to (..., C)."""
    if isinstance(matrix, nn.Linear):
        y = x @ matrix.weight.T
        return y if matrix.bias is None else y + matrix.bias
    return x @ matrix.T  # type: ignore[no-any-return]
