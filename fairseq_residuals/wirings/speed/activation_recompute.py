"""Tensors that the backward pass recomputes instead of keeping.

They are those that cost little beside what they are made of, which is kept for other gradients anyway. The numbers are
the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from fairseq_residuals.wirings.ops import depth_sum
from fairseq_residuals.wirings.utils import torch_private

MOST_USERS = 3
"""Queries, keys and values; a tensor that more layers need for their gradients is kept, once for all of them."""


class _Recipe:
    """Way to make a tensor again."""

    def __init__(self, make: Callable[[], Tensor], version: int) -> None:
        self.make, self.version = make, version
        self.users = 0
        self.kept: Tensor | None = None


def recomputable(y: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return ``y``; within :func:`recomputing`, layers that need it for their gradients keep ``make`` instead.

    ``make`` is called without gradients, and refers to tensors that are kept for gradients too. Elsewhere these are not
    kept, as in a layer under activation recomputation, and ``y`` is as it was.
    """
    if _hooks_in_force() is not None:
        y.recipe = _Recipe(make, y._version)  # type: ignore[attr-defined]
    return y


class _Step:
    """Hooks that autograd calls for each tensor that it keeps, and when it needs it."""

    def __init__(self) -> None:
        self.last: tuple[_Recipe, Tensor] | None = None
        """Recipe and tensor of the last use: what queries, keys and values are made of is made once for all three."""

    def pack(self, x: Tensor) -> Any:
        made = x if x._base is None else x._base
        recipe: _Recipe | None = getattr(made, "recipe", None)
        whole = x.numel() == made.numel() and x.is_contiguous() and made.is_contiguous()
        if recipe is None or recipe.version != made._version or not whole:
            return x.detach()  # x itself may be the output of what keeps it, and the two would keep each other
        recipe.users += 1
        if recipe.users > MOST_USERS:
            recipe.kept = made.detach()
        return recipe, x.shape

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        recipe, shape = packed
        if recipe.kept is not None:
            return recipe.kept.view(shape)  # type: ignore[no-any-return]
        if self.last is None or self.last[0] is not recipe:
            self.last = None
            with torch.no_grad():
                self.last = recipe, recipe.make()
        return self.last[1].view(shape)


@contextmanager
def recomputing() -> Iterator[None]:
    """Mark the forward pass of a training step, which runs in this context."""
    step = _Step()
    with torch.autograd.graph.saved_tensors_hooks(step.pack, step.unpack), depth_sum.around_sum.attached(keeping):
        yield


def _hooks_in_force() -> tuple[Any, Any] | None:
    """Return the hooks of :func:`recomputing`, unless others are above them; None too where PyTorch does not tell."""
    hooks = torch_private.saved_tensors_hooks_in_force()
    return hooks if hooks is not None and isinstance(getattr(hooks[0], "__self__", None), _Step) else None


def keeping(tensors: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Let autograd keep tensors as they are, these among them, also within :func:`recomputing`.

    A sum over depth has a term for each layer below, and calls for each cost more than there is to gain.
    """
    hooks = _hooks_in_force()
    if hooks is None:
        return nullcontext()
    for x in tensors:
        if hasattr(x, "recipe"):
            x.recipe.kept = x.detach()
    return torch_private.without_saved_tensors_hooks(*hooks)


class RecomputedLayerNorm(nn.LayerNorm):
    """LayerNorm whose outputs can be made again."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        y = super().forward(x)
        if torch.compiler.is_compiling() or not (self.training and y.requires_grad and y.dtype == x.dtype):
            return y
        given = x.detach()
        return recomputable(y, lambda: layer_norm(given, self.normalized_shape, self.weight, self.bias, self.eps))
