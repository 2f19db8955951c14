"""Several streams: the products and their one rounding, the Sinkhorn steps, gradients, and what is kept for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from against_reference import CHECKS, Case, in_bf16
from autograd_memory import kept_for_gradients
from torch import Tensor

from fairseq_residuals.wirings.ops.hyper_mix import (
    STEPS,
    depth_connection,
    sinkhorn,
    width_connection,
    width_connection_reference,
)

# in half precision logits do not occur: routers compute in single precision at least
SHAPES = ((2, 2, 7), (3, 3, 2, 5), (4, 4, 1))
PRECISE = tuple(check for check in CHECKS if check is not in_bf16)


def plain_sinkhorn(logits: Tensor) -> Tensor:
    """Normalize columns and rows of exp(logits) in turn."""
    matrices = logits.exp()
    for dim in (0, 1) * STEPS:
        matrices = matrices / matrices.sum(dim, keepdim=True)
    return matrices


def cases() -> list[Case]:
    """One stream and three, weights of each position and alike for all."""
    found = []
    for n in (1, 3):
        for kind, leading in (("each position", (3, 2)), ("alike", ())):
            streams, read, mix, write = (3, 2, n, 5), (*leading, 1, n), (*leading, n, n), (*leading, n, 1)
            label, compiled = f"{n} streams, {kind}", n > 1 and bool(leading)
            width, depth = (streams, read, mix), (streams, write, (3, 2, 5))
            ops = width_connection, width_connection_reference
            found.append(Case(f"width, {label}", *ops, width, halved=(0,), compiled=compiled))
            ops = depth_connection, lambda x, write, y: (x.to(write.dtype) + write * y.unsqueeze(-2)).to(x.dtype)
            found.append(Case(f"depth, {label}", *ops, depth, halved=(0, 2), compiled=compiled))
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_against_reference(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_mixed_streams_are_rounded_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(8)
    shapes = ((50, 1, 4), (50, 4, 4), (50, 4, 1), (50, 4, 16), (50, 16))
    read, mix, write, streams, y = (torch.randn(shape, generator=generator) for shape in shapes)
    streams, y = (x.to(dtype).requires_grad_() for x in (streams, y))
    u, mixed = width_connection(streams, read, mix)
    written = depth_connection(mixed, write, y)
    exact = (read.double() @ streams.double()).squeeze(-2), mix.double() @ streams.double()
    expected = (*exact, mixed + write.double() * y.unsqueeze(-2))
    for out, value in zip((u, mixed, written), expected, strict=True):
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), value, rtol=0.51 * torch.finfo(dtype).eps, atol=3e-6)
    assert all(grad.dtype == dtype for grad in torch.autograd.grad((u.sum(), written.sum()), (streams, y)))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_streams_are_kept_once_and_without_a_copy(dtype: torch.dtype) -> None:
    streams = torch.randn(50, 4, 16).to(dtype).requires_grad_()
    read, mix, write = (torch.randn(50, *shape).requires_grad_() for shape in ((1, 4), (4, 4), (4, 1)))
    with kept_for_gradients(streams.numel()) as kept:
        u, mixed = width_connection(streams, read, mix)
        depth_connection(mixed, write, u.detach())
    assert kept == {streams.data_ptr()}


def random_logits(n: int, std: float, matrices: int) -> Tensor:
    return std * torch.randn(n, n, matrices, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("check", PRECISE, ids=lambda check: check.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sinkhorn_against_reference(shape: tuple[int, ...], check: Callable[[Case], None]) -> None:
    check(Case("sinkhorn", sinkhorn, plain_sinkhorn, (shape,), compiled=shape[0] == 3))


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
    assert values.grad is not None and values.grad.isfinite().all() and not plain_sinkhorn(values).isfinite().all()
