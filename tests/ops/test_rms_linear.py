"""Products of normalized rows: the norms of PyTorch, the gradient, and what is kept for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from against_reference import CHECKS, Case
from torch import Tensor

from fairseq_residuals.wirings.ops.rms_linear import mean_square, rms_linear, rms_linear_reference

EPS = 1e-6


def cases() -> list[Case]:
    """Of one dimension before the last and of two, and of a single row."""
    return [
        Case(
            f"{'centred' if centred else 'not centred'} {x}",
            partial(rms_linear, centred=centred, eps=0.01),
            partial(rms_linear_reference, centred=centred, eps=0.01),
            (x, (7, x[-1])),
            compiled=len(x) == 3,
        )
        for centred in (False, True)
        for x in ((5, 12), (3, 2, 13), (1, 12))
    ]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_against_reference(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.float64), ids=str)
def test_mean_square(dtype: torch.dtype) -> None:
    """Squares of 300 are beyond the largest number of half precision."""
    x = (300 * torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).to(dtype)
    mean = mean_square(x)
    assert mean.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(mean.double(), x.double().square().mean(-1), rtol=1e-5, atol=0)


def test_the_product_keeps_its_input_and_no_copy() -> None:
    x, weight = torch.randn(50, 64).half().requires_grad_(), torch.randn(3, 64).half().requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = rms_linear(x, weight, centred=True, eps=EPS)
    assert out.dtype == torch.float32
    assert [t.dtype for t in kept if t.shape == x.shape] == [torch.float16]
    out.sum().backward()
    assert x.grad is not None and weight.grad is not None and x.grad.dtype == weight.grad.dtype == torch.float16
