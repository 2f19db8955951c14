"""Functions in the place of others, and modules of which a few names are replaced for one other module."""

import functools
import types
from collections.abc import Callable
from typing import Any


class ModuleProxy(types.ModuleType):
    """Stands for ``wrapped`` in one fairseq module, with ``overrides`` in place of the names given.

    Nothing else sees the replacement: ``torch`` and ``numpy`` themselves stay as they are.
    """

    def __init__(self, wrapped: types.ModuleType, **overrides: Any) -> None:
        super().__init__(wrapped.__name__, wrapped.__doc__)
        self.__dict__["_wrapped"] = wrapped
        self.__dict__.update(overrides)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_wrapped"], name)


def override(module: types.ModuleType, name: str, **overrides: Any) -> None:
    """Replace names of the module that ``module`` knows as ``name``; later calls add to earlier ones."""
    current = getattr(module, name)
    if isinstance(current, ModuleProxy):
        current.__dict__.update(overrides)
    else:
        setattr(module, name, ModuleProxy(current, **overrides))


def replaces(owner: Any, name: str) -> Callable[[Callable], Callable]:
    """Put a function in the place of ``owner.name``, a function or a method, which it gets as its first argument."""

    def put(function: Callable) -> Callable:
        original = getattr(owner, name)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, replacement)
        return replacement

    return put
