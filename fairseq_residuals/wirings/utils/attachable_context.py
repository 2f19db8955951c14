"""Let code from outside put a context around a part of a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


class AttachableContext:
    """Stand for a context that other code may attach, and do nothing until it does.

    A function that enters one of these needs no import of the code that makes it faster.
    """

    def __init__(self) -> None:
        self._make: Callable[..., AbstractContextManager[Any]] | None = None

    def __call__(self, *values: Any) -> AbstractContextManager[Any]:
        """Return the context that is attached, for ``values``; torch.compile never traces it."""
        return nullcontext() if torch.compiler.is_compiling() or self._make is None else self._make(*values)

    @contextmanager
    def attached(self, make: Callable[..., AbstractContextManager[Any]]) -> Iterator[None]:
        """Attach what ``make`` returns for the values of each call, until this context ends."""
        previous, self._make = self._make, make
        try:
            yield
        finally:
            self._make = previous
