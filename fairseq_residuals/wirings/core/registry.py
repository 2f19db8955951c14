"""The wirings by name, and what each must say of itself to be among them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping

from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import options_of
from fairseq_residuals.wirings.core.errors import UserError, did_you_mean

REQUIRED = ("title", "paper", "year", "equations", "verified")
"""Attributes that each class that is registered declares in its own body."""
OPTIONAL = ("code", "extension", "export_as", "normalize_before", "ships_in", "symbols", "starts_as")
"""Attributes that a class declares where it differs from :class:`Variant`; they are not inherited from a variant that
is registered itself, for what it says need not hold of what derives from it."""
_REGISTERED: dict[str, type[Variant]] = {}


class Variants(Mapping[str, type[Variant]]):
    """All variants, by name; whoever asks for the first time imports those of the plugin."""

    def __getitem__(self, name: str) -> type[Variant]:
        import_variants()
        return _REGISTERED[name]

    def __iter__(self) -> Iterator[str]:
        import_variants()
        return iter(_REGISTERED)

    def __len__(self) -> int:
        import_variants()
        return len(_REGISTERED)


VARIANTS = Variants()


def register_variant(name: str) -> Callable[[type[Variant]], type[Variant]]:
    """Make a class known as the variant ``name`` to every task, flag, architecture and test (a decorator).

    Raises:
        ValueError: the name is taken, or could not stand in a list of variants or in an architecture's name.
        TypeError: the class is no variant, its options have no decorator, or it would be listed under what another
            variant says of itself. (A base that is not registered, as of two variants of one paper, declares for both.)
    """

    def register(cls: type[Variant]) -> type[Variant]:
        if not re.fullmatch("[a-z][a-z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of a wiring: lower-case letters, digits and _ make one")
        if not issubclass(cls, Variant):
            raise TypeError(f"{cls.__name__} is no Variant: build_stack and wrap take a Connection as it is")
        known = _REGISTERED.get(name)
        # a cell of a notebook that runs again defines the class anew
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"a wiring named {name!r} is registered already: {_REGISTERED[name]}")
        options_of(cls.Config)
        lineage = cls.__mro__
        own = lineage[: next(i for i, base in enumerate(lineage) if base is Variant or base in _REGISTERED.values())]
        if missing := [attribute for attribute in REQUIRED if not any(attribute in vars(base) for base in own)]:
            raise TypeError(f"wiring {name!r} does not say its {', '.join(missing)} in the body of {cls.__name__}")
        for attribute in OPTIONAL:
            if not any(attribute in vars(base) for base in own):
                setattr(cls, attribute, getattr(Variant, attribute))
        cls.name = name
        _REGISTERED[name] = cls
        return cls

    return register


@functools.cache
def import_variants() -> None:
    """Import every module of :mod:`fairseq_residuals.wirings.variants`; importing one registers what it defines."""
    package = importlib.import_module("fairseq_residuals.wirings.variants")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def list_variants() -> list[str]:
    """Return the names of all wirings, the oldest first."""
    import_variants()
    return sorted(VARIANTS, key=lambda name: (VARIANTS[name].year, name))


def find_variant(name: str) -> type[Variant]:
    """Return the variant called ``name``.

    Raises:
        UserError: there is none; the message lists the valid names.
    """
    if name not in VARIANTS:
        # of an architecture's name the variant is a part
        parts = [variant for variant in VARIANTS if f"_{variant}_" in f"_{name}_"]
        hint = did_you_mean(max(parts, key=len, default=name), VARIANTS)
        raise UserError(f"unknown wiring {name!r}{hint}; the wirings are {', '.join(sorted(VARIANTS))}")
    return VARIANTS[name]
