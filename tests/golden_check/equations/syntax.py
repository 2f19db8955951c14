"""The parts of equations, as :mod:`.parser` makes them of a text and :mod:`.evaluation` runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairseq_residuals.wirings.core.errors import UserError


class EquationError(UserError):
    """A text is no equation, or names what is not there."""


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Name:
    """A variable, a parameter, an option, or with ``index`` an entry of one."""

    name: str
    index: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class Call:
    """A function, a norm (with ``index``, one of several), a sub-layer or a matrix, applied to arguments."""

    name: str
    arguments: tuple[Expression, ...]
    index: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class Operation:
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Range:
    """Whole numbers from ``first`` to ``last``, both included, one after the other called ``name``."""

    name: str
    first: Expression
    last: Expression


@dataclass(frozen=True)
class Sum:
    over: Range
    term: Expression


@dataclass(frozen=True)
class Concatenation:
    """Vectors side by side: the parts, or what the only part is for each value of the range."""

    parts: tuple[Expression, ...]
    over: Range | None = None


Expression = Number | Name | Call | Operation | Sum | Concatenation


@dataclass(frozen=True)
class Edit:
    """What becomes of an intermediate result while a sub-layer runs."""

    target: str
    value: Expression
    per_head: bool = False


@dataclass(frozen=True)
class Statement:
    """``target = value``, for every value of ``over``; with the edits in force while sub-layers run.

    The target "output" is what the stack gives; "F" has no value, its edits hold for the whole sub-layer.
    """

    target: str
    value: Expression | None
    index: tuple[Expression, ...] = ()
    edits: tuple[Edit, ...] = ()
    over: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Comparison:
    operator: str
    left: Expression
    right: Expression


Place = Literal["start", "sublayer", "after_layer", "output"]


@dataclass(frozen=True)
class Line:
    text: str
    place: Place
    conditions: tuple[str | Comparison, ...]
    otherwise: bool
    """Whether it begins with "else"."""
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Equations:
    lines: tuple[Line, ...]
    norm_type: str = "layer"


def mentioned(part: object) -> set[str]:
    """Return all names in an expression, those of functions among them."""
    if isinstance(part, tuple):
        return set().union(*map(mentioned, part))
    if not hasattr(part, "__dataclass_fields__"):
        return set()
    below = set().union(*(mentioned(getattr(part, field)) for field in part.__dataclass_fields__))
    return below | ({part.name} if isinstance(part, (Name, Call)) else set())
