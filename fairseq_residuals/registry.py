"""The variants by name, and the wiring that a user asks for: a variant with its options."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fairseq_residuals.base import Shape, Variant
from fairseq_residuals.options import format_options, options_of, parse_options
from modern_fairseq.errors import UserError

VARIANTS: dict[str, type[Variant]] = {}


def register_variant(name: str) -> Callable[[type[Variant]], type[Variant]]:
    """Class decorator: makes the variant known as ``name`` to every task, flag, architecture and test."""

    def register(cls: type[Variant]) -> type[Variant]:
        if name in VARIANTS:
            raise ValueError(f"a variant named {name!r} is registered already: {VARIANTS[name]}")
        cls.name = name
        VARIANTS[name] = cls
        return cls

    return register


def import_variants() -> None:
    """Imports every module of :mod:`fairseq_residuals.variants`; importing one registers what it defines."""
    package = importlib.import_module("fairseq_residuals.variants")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def find_variant(name: str) -> type[Variant]:
    """The variant called ``name``.

    Raises:
        UserError: there is none; the message lists the valid names.
    """
    if name not in VARIANTS:
        close = difflib.get_close_matches(name, VARIANTS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise UserError(f"unknown variant {name!r}{hint}; the variants are {', '.join(sorted(VARIANTS))}")
    return VARIANTS[name]


@dataclass(frozen=True)
class Wiring:
    """A variant with its options, as ``--residual NAME --residual-args k=v,...`` choose it."""

    name: str
    config: Any
    given: frozenset[str] = frozenset()
    """The options that the user named; the others have their defaults."""

    @classmethod
    def parse(cls, name: str, args: str | None = None) -> Wiring:
        """From the two flags' values.

        Raises:
            UserError: unknown variant or option, or a value out of range; the message lists what is valid.
        """
        config, given = parse_options(f"variant {name!r}", find_variant(name).Config, args or "")
        return cls(name, config, given)

    @property
    def variant(self) -> type[Variant]:
        return VARIANTS[self.name]

    @property
    def args(self) -> str:
        """Every option spelled out, as ``--residual-args`` takes it."""
        return format_options(self.config)

    def with_default(self, name: str, value: Any) -> Wiring:
        """The same with option ``name`` set, if the variant has it and the user did not name it."""
        if name not in options_of(type(self.config)) or name in self.given:
            return self
        return replace(self, config=replace(self.config, **{name: value}))

    def build(self, shape: Shape) -> Variant:
        """The variant for one stack."""
        return self.variant(self.config, shape)

    def __str__(self) -> str:
        return f"{self.name} ({self.args})" if self.args else self.name
