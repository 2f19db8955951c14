"""Let code from outside compute an op in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class AttachableForm:
    """Stand for another form of an op, of which there is none until code from outside attaches one.

    An op that asks for one of these needs no import of the code that makes it faster.
    """

    def __init__(self) -> None:
        self._form: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        """Return what the attached form makes of ``inputs``; None where it does not serve them, or there is none."""
        return None if self._form is None or torch.compiler.is_compiling() else self._form(*inputs)

    @contextmanager
    def attached(self, form: Callable[..., Any]) -> Iterator[None]:
        """Attach a form until this context ends; it returns None for inputs that it does not serve."""
        previous, self._form = self._form, form
        try:
            yield
        finally:
            self._form = previous
