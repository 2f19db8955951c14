"""A module with a few names replaced, to be put into the globals of one other module."""

import types
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

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._wrapped), *self.__dict__})


def override(module: types.ModuleType, name: str, **overrides: Any) -> None:
    """Replace names of the module that ``module`` knows as ``name``; later calls add to earlier ones."""
    current = getattr(module, name)
    if isinstance(current, ModuleProxy):
        current.__dict__.update(overrides)
    else:
        setattr(module, name, ModuleProxy(current, **overrides))
