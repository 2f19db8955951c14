"""Kernels in Triton beside the references of their ops; without a GPU Triton interprets them.

``TRITON_INTERPRET=1`` has to be set before Triton is imported, so a module with such tests imports this one first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_residuals.utils.triton_kernels import has_triton

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(not has_triton(), reason="Triton is missing, which PyTorch's builds for a CPU lack")


def draw(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def with_gradients(op: Callable[..., Any], inputs: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of the inputs for a loss that weighs all entries unlike."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    made = op(*leaves)
    outputs = [out for out in (made if isinstance(made, tuple) else (made,)) if out is not None]
    losses = [(out.double() * draw(*out.shape, seed=90 + i).double()).sum() for i, out in enumerate(outputs)]
    gradients = torch.autograd.grad(sum(losses), [x for x in leaves if x is not None])  # type: ignore[arg-type]
    return [out.detach() for out in outputs], list(gradients)


def assert_kernel_near(
    op: Callable[..., Any], reference: Callable[..., Any], inputs: Sequence[Tensor | None], error: float
) -> None:
    """Outputs and gradients of a kernel by the norm of each, beside the reference in double precision."""
    found = with_gradients(op, inputs)
    expected = with_gradients(reference, [None if x is None else x.double() for x in inputs])
    for ours, exact in zip(found, expected, strict=True):
        for x, y in zip(ours, exact, strict=True):
            assert x.shape == y.shape
            assert (x.double() - y).norm() <= error * y.norm() + 1e-12, (x, y)
    dtypes = [x.dtype for x in inputs if x is not None]
    assert [gradient.dtype for gradient in found[1]] == dtypes
