"""The Sinkhorn steps: the plain loop, its gradient, and what is kept for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from against_reference import CHECKS, Case, in_bf16
from autograd_memory import kept_for_gradients
from torch import Tensor

from fairseq_residuals.wirings.ops.sinkhorn import sinkhorn, sinkhorn_reference

# in half precision logits do not occur: routers compute in single precision at least
SHAPES = ((2, 2, 7), (3, 3, 2, 5), (4, 4, 1))
PRECISE = tuple(check for check in CHECKS if check is not in_bf16)


def random_logits(n: int, std: float, matrices: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return std * torch.randn(n, n, matrices, generator=torch.Generator().manual_seed(n), dtype=dtype)


@pytest.mark.parametrize("check", PRECISE, ids=lambda check: check.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_reference(shape: tuple[int, ...], check: Callable[[Case], None]) -> None:
    check(Case("sinkhorn", sinkhorn, sinkhorn_reference, (shape,), compiled=shape[0] == 3))


@pytest.mark.parametrize("n", (1, 2, 3, 4))
@pytest.mark.parametrize("std", (0.1, 1, 3))
def test_sinkhorn_is_the_plain_loop(n: int, std: float) -> None:
    for dtype, error in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        results = []
        for function in (sinkhorn, sinkhorn_reference):
            values = random_logits(n, std, 200, dtype).requires_grad_()
            out = function(values)
            out.mul(random_logits(n, 1, 200, dtype)).sum().backward()
            results.append((out.detach(), values.grad))
        torch.testing.assert_close(results[0], results[1], rtol=error, atol=error)
    assert n == 1 or results[1][1].abs().max() > 0.01


def test_sinkhorns_gradient_is_that_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(sinkhorn, random_logits(3, 2, 4, torch.float64).requires_grad_())


def test_sinkhorn_keeps_its_logits_alone() -> None:
    values = random_logits(4, 1, 50).requires_grad_()
    with kept_for_gradients(1) as kept:
        sinkhorn(values)
    assert kept == {values.data_ptr()}


@pytest.mark.parametrize(("std", "error"), [(1, 1.5e-4), (3, 5e-2)])
def test_rows_sum_to_one_and_columns_nearly(std: float, error: float) -> None:
    m = sinkhorn(random_logits(4, std, 10_000))
    assert (m >= 0).all()
    torch.testing.assert_close(m.sum(1), torch.ones(4, 10_000), rtol=0, atol=1e-6)
    columns = (m.sum(0) - 1).abs().amax(0)
    # the steps stop before they converge, later for a few matrices in a thousand than for the others
    assert columns.quantile(0.998) < error and columns.max() > 1e-4


def test_no_logit_is_too_large() -> None:
    values = torch.tensor([[1e4, 0.0], [0.0, 1e4]]).requires_grad_()
    m = sinkhorn(values)
    m.sum().backward()
    torch.testing.assert_close(m, torch.eye(2))
    assert values.grad is not None and values.grad.isfinite().all() and not sinkhorn_reference(values).isfinite().all()
