"""Width and depth connections of several streams: the products, their gradients, and one rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from against_reference import CHECKS, Case
from autograd_memory import kept_for_gradients

from fairseq_residuals.wirings.ops.hyper_mix import (
    depth_connection,
    depth_connection_reference,
    width_connection,
    width_connection_reference,
)


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
            ops = depth_connection, depth_connection_reference
            found.append(Case(f"depth, {label}", *ops, depth, halved=(0, 2), compiled=compiled))
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_against_reference(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("n", (1, 3))
def test_connections_are_products(n: int) -> None:
    draw = torch.Generator().manual_seed(7)
    shapes = ((3, 2, n, 5), (3, 2, 5), (3, 2, 1, n), (3, 2, n, n), (3, 2, n, 1))
    streams, y, read, mix, write = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    u, mixed = width_connection(streams, read, mix)
    torch.testing.assert_close(u, torch.einsum("tbi,tbic->tbc", read.squeeze(-2), streams))
    torch.testing.assert_close(mixed, torch.einsum("tbji,tbic->tbjc", mix, streams))
    expected = mixed + torch.einsum("tbj,tbc->tbjc", write.squeeze(-1), y)
    torch.testing.assert_close(depth_connection(mixed, write, y), expected)


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
