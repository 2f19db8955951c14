"""Every function of PyTorch that it does not declare public and the plugin alone calls.

All versions from 2.9 on have them, but for those behind a probe: there :data:`None` or ``False`` says that one is
missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# attention within sentences that are end to end


@functools.cache
def varlen_attention() -> Callable[..., Any] | None:
    """Return ``torch.nn.attention.varlen.varlen_attn``, or None where PyTorch lacks it (until 2.10).

    The first call imports it, and with it PyTorch's compiler, which takes a second that few processes need.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn  # type: ignore[no-any-return]


# many tensors at once


def zero_all_(tensors: Sequence[Tensor]) -> None:
    """Fill every tensor with zeros, by one kernel on a GPU."""
    torch._foreach_zero_(list(tensors))


def add_all_(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Add each of ``others`` to its tensor in place, by one kernel on a GPU."""
    torch._foreach_add_(list(tensors), list(others))


# oneDNN's matrices in the layout that it multiplies by


def packs_matrices() -> bool:
    """Return whether this PyTorch has oneDNN, with the operators that its compiler uses for constant weights."""
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


@functools.cache
def packs_type(dtype: torch.dtype) -> bool:
    """Return whether this processor multiplies packed matrices of a type: bf16 needs AVX-512 or newer."""
    try:
        packed_linear(torch.ones(1, 16, dtype=dtype), packed_matrix(torch.ones(16, 16, dtype=dtype)), None)
    except RuntimeError:
        return False
    return True


def packed_matrix(weight: Tensor) -> Tensor:
    """Return ``weight`` (out, in) in oneDNN's layout; only where :func:`packs_matrices`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)  # type: ignore[no-any-return]


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x W^T + bias`` by a :func:`packed_matrix`."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]
