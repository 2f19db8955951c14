"""A wiring's options: declared as fields of a frozen dataclass, parsed from "k=v,...", checked, written back."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fairseq_residuals.wirings.core.errors import UserError

T = TypeVar("T")

LARGEST = 1e6
"""The largest factor: with more of them, numbers of single precision overflow."""
MOST_LAYERS = 10_000
"""The most layers that an option counts; no model has more."""
SHORT = {"norm": "norm_type"}
"""Other names of options, for wirings that have no option of that name themselves."""


@dataclass(frozen=True)
class Option:
    """One option as a user sees it."""

    name: str
    type: Any
    default: Any
    help: str
    minimum: float | None
    maximum: float | None
    for_training: bool
    """Whether a trained model is the same whatever the value: it says how weights start, or what is dropped."""
    choices: Callable[[], tuple[str, ...]] | None = None
    """A function that returns the valid texts, where a program may add to them; None: the type says which are valid."""
    only_with: str = ""
    """Other option, or its ``name=value``, without which this one does nothing."""

    def is_idle(self, config: Any) -> bool:
        """Return whether ``config`` has a value of its own for this option, which there does nothing."""
        name, _, value = self.only_with.partition("=")
        if not name or getattr(config, self.name) == self.default:
            return False
        other = getattr(config, name)
        return show_value(other) != value if value else not other

    def describe(self) -> str:
        """Return the values that are valid, in words."""
        if self.choices:
            return " or ".join(self.choices())
        words = []
        for t in _alternatives(self.type):
            if get_origin(t) is Literal:
                words += [str(v) for v in get_args(t)]
            elif t is bool:
                words.append("true, false")
            elif t is str:
                words.append("text")
            else:
                bounds = f"from {show_value(self.minimum)} to {show_value(self.maximum)}"
                words.append(f"{'an integer' if t is int else 'a number'} {bounds}")
        return " or ".join(words)

    def parse(self, text: str) -> Any:
        """Return the value written as ``text``.

        Raises:
            ValueError: it is not one of the valid values.
        """
        if self.choices and text not in self.choices():
            raise ValueError(text)
        types = _alternatives(self.type)
        for t in types:
            if t is bool and float in types and text in ("0", "1"):
                continue  # a number
            try:
                value = _parse_as(t, text)
            except ValueError:
                continue
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not self._in_range(value):
                continue
            return value
        raise ValueError(text)

    def _in_range(self, value: float) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)


def option(
    default: T,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    for_training: bool = False,
    choices: Callable[[], tuple[str, ...]] | None = None,
    only_with: str = "",
) -> T:
    """Declare a field of a wiring's ``Config``; the other arguments are those of :class:`Option`.

    The field's annotation is bool, int, float, str, a Literal, or a union of them.
    """
    said = {"help": help, "minimum": minimum, "maximum": maximum, "for_training": for_training, "choices": choices}
    return typing.cast(T, dataclasses.field(default=default, metadata=said | {"only_with": only_with}))


@functools.cache
def options_of(config_class: type) -> Mapping[str, Option]:
    """Return the options that a ``Config`` declares, by name, in their order.

    Raises:
        TypeError: no decorator, a field without :func:`option`, or a default that cannot be written and read as text.
    """
    if any(isinstance(value, dataclasses.Field) for value in vars(config_class).values()):
        raise TypeError(f"{config_class.__qualname__} needs the decorator @dataclass(frozen=True)")
    hints = get_type_hints(config_class)
    options = {}
    for f in dataclasses.fields(config_class):  # type: ignore[arg-type]
        if not f.metadata:
            raise TypeError(f"{config_class.__qualname__}.{f.name} needs option(default, help): the field has neither")
        options[f.name] = known = Option(f.name, hints[f.name], f.default, **f.metadata)
        try:  # as a checkpoint has it
            known.parse(show_value(known.default))
        except ValueError:
            where = f"{config_class.__qualname__}.{known.name}"
            raise TypeError(
                f"the default {known.default!r} of {where} is not valid; valid: {known.describe()}"
            ) from None
    return MappingProxyType(options)


Given = str | Mapping[str, Any] | None
"""Options as a user gives them: the text "k=v,...", or values by name."""


def given_options(given: Given) -> list[tuple[str, Any]]:
    """Return names and values in the order in which they were given; of a name without "=", the value is None."""
    if isinstance(given, Mapping):
        return list(given.items())
    items = [item.strip().partition("=") for item in (given or "").split(",") if item.strip()]
    return [(name.strip(), value.strip() if equals else None) for name, equals, value in items]


def parse_options(owner: str, config_class: type[T], given: Given | list[tuple[str, Any]]) -> tuple[T, frozenset[str]]:
    """Return a ``Config`` from options, and the names that were given.

    Raises:
        UserError: an unknown or repeated name, a missing value, or one that is not valid; it lists what is.
    """
    options = options_of(config_class)  # type: ignore[arg-type]  # mypy takes type[T] for unhashable
    values: dict[str, Any] = {}
    for name, value in given if isinstance(given, list) else given_options(given):
        name = name if name in options else SHORT.get(name, name)
        if name not in options:
            if f"{name}={show_value(value)}" in getattr(config_class, "former", ()):
                continue
            raise UserError(f"{owner} has no option {name!r}; its options are {', '.join(options)}")
        if value is None:
            raise UserError(f"option {name!r} of {owner} needs a value: {name}={options[name].describe()}")
        if name in values:
            raise UserError(f"option {name!r} of {owner} is given twice")
        try:
            values[name] = options[name].parse(show_value(value))
        except ValueError:
            own = "; a norm of your own has to be registered first: import its file" * (name == "norm_type")
            raise UserError(
                f"{show_value(value)!r} is not valid for option {name!r} of {owner}; valid:"
                f" {options[name].describe()}{own}"
            ) from None
    return config_class(**values), frozenset(values)


def format_options(config: Any) -> str:
    """Return the text of which :func:`parse_options` makes ``config``, every option spelled out."""
    return ",".join(f"{f.name}={show_value(getattr(config, f.name))}" for f in dataclasses.fields(config))


def _alternatives(t: Any) -> tuple[Any, ...]:
    return get_args(t) if get_origin(t) in (Union, types.UnionType) else (t,)


def _parse_as(t: Any, text: str) -> Any:
    if t in (int, float):
        value = t(text)
        valid = t is int or math.isfinite(value)
    elif t is str:
        value, valid = text, True
    else:
        names = {"true": True, "false": False, "1": True, "0": False}
        names, text = (names, text.lower()) if t is bool else ({str(v): v for v in get_args(t)}, text)
        value, valid = names.get(text), text in names
    if not valid or "," in text:  # which separates options
        raise ValueError(text)
    return value


def show_value(value: Any) -> str:
    """Return a value as a user writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
