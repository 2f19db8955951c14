"""Watch which tensors autograd keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def kept_for_gradients(size: int) -> Iterator[set[int]]:
    """The addresses of tensors with at least ``size`` entries that autograd keeps of what happens in the context."""
    kept: set[int] = set()

    def see(value: Tensor) -> Tensor:
        if value.numel() >= size:
            kept.add(value.data_ptr())
        return value

    with torch.autograd.graph.saved_tensors_hooks(see, lambda value: value):
        yield kept
