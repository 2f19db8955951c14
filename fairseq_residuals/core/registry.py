"""The variants by name."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from fairseq_residuals.core.base import Variant
from fairseq_residuals.core.errors import UserError, did_you_mean

VARIANTS: dict[str, type[Variant]] = {}


def register_variant(name: str) -> Callable[[type[Variant]], type[Variant]]:
    """Class decorator: makes the variant known as ``name`` to every task, flag, architecture and test."""

    def register(cls: type[Variant]) -> type[Variant]:
        if name in VARIANTS:
            raise ValueError(f"a variant named {name!r} is registered already: {VARIANTS[name]}")
        if not issubclass(cls.Config, Variant.Config):
            raise TypeError(f"the Config of variant {name!r} must derive from Variant.Config")
        cls.name = name
        VARIANTS[name] = cls
        return cls

    return register


@functools.cache
def import_variants() -> None:
    """Import every module of :mod:`fairseq_residuals.variants`; importing one registers what it defines."""
    package = importlib.import_module("fairseq_residuals.variants")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def list_variants() -> list[str]:
    """Return the names of all variants, in the order of the alphabet."""
    import_variants()
    return sorted(VARIANTS)


def find_variant(name: str) -> type[Variant]:
    """The variant called ``name``.

    Raises:
        UserError: there is none; the message lists the valid names.
    """
    import_variants()
    if name not in VARIANTS:
        hint = did_you_mean(name, VARIANTS)
        raise UserError(f"unknown variant {name!r}{hint}; the variants are {', '.join(sorted(VARIANTS))}")
    return VARIANTS[name]
