"""Sums over depth and the mixing of streams by kernels, beside the references of their ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_cases import assert_kernel_near, draw, needs_triton

from fairseq_residuals.ops.depth_sum import softmax_sum_reference, weighted_sum_reference
from fairseq_residuals.ops.hyper_mix import depth_connection_reference, width_connection_reference
from fairseq_residuals.ops.sinkhorn import sinkhorn, sinkhorn_reference

HALF = pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)


def near(op: Callable[..., Any], reference: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    half = any(x.dtype == torch.bfloat16 for x in inputs)
    assert_kernel_near(op, reference, inputs, 2e-2 if half else 2e-6)


@needs_triton
@HALF
@pytest.mark.parametrize("n", (1, 3, 4))
@pytest.mark.parametrize("leading", ((2, 3), ()), ids=("each position", "alike"))
def test_streams(dtype: torch.dtype, n: int, leading: tuple[int, ...]) -> None:
    from fairseq_residuals.ops.kernels import hyper_mix

    streams, y = draw(2, 3, n, 5, seed=1, dtype=dtype), draw(2, 3, 5, seed=2, dtype=dtype)
    read, mix, write = (draw(*leading, *shape, seed=3) for shape in ((1, n), (n, n), (n, 1)))
    near(hyper_mix.width_connection, width_connection_reference, [streams, read, mix])
    near(hyper_mix.depth_connection, depth_connection_reference, [streams, write, y])


@needs_triton
@pytest.mark.parametrize("n", (2, 4))
def test_sinkhorn(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More positions than a program has."""
    from fairseq_residuals.ops.kernels import sinkhorn as kernel

    monkeypatch.setattr(kernel, "POSITIONS", 4)
    logits = 2 * draw(n, n, 3, 3)
    assert_kernel_near(kernel.sinkhorn, sinkhorn_reference, [logits], 2e-5)
    found = kernel.sinkhorn(logits)
    assert found is not None
    torch.testing.assert_close(found, sinkhorn(logits), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(kernel.sinkhorn(50 * logits), sinkhorn(50 * logits), rtol=1e-4, atol=1e-5)
    assert kernel.sinkhorn(draw(3, 3, 2)) is None


@needs_triton
@HALF
@pytest.mark.parametrize("each", (True, False))
def test_weighted_sums(dtype: torch.dtype, each: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more values than one kernel adds up."""
    from fairseq_residuals.ops.kernels import depth_sum

    monkeypatch.setattr(depth_sum, "AT_A_TIME", 2)
    inputs = [draw(5, *((2, 3, 1) if each else (1,)), seed=9, dtype=dtype)]
    inputs += [draw(2, 3, 7, seed=seed, dtype=dtype) for seed in range(5)]
    near(
        lambda w, *values: depth_sum.weighted_sum(w, values),
        lambda w, *values: weighted_sum_reference(w, values),
        inputs,
    )
    assert depth_sum.weighted_sum(draw(5, 7), inputs[1:]) is None


@needs_triton
@HALF
def test_softmax_over_depth(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_residuals.ops.kernels import depth_sum

    monkeypatch.setattr(depth_sum, "MOST_PROGRAMS", 4)
    inputs = [draw(7, seed=9, dtype=dtype), *(draw(2, 3, 7, seed=seed, dtype=dtype) for seed in range(3))]

    def of(op: Callable[..., Any]) -> Callable[..., Any]:
        return lambda direction, *values: op(direction, values, 1e-6)

    near(of(depth_sum.softmax_sum), of(softmax_sum_reference), inputs)
    assert depth_sum.softmax_sum(inputs[0], inputs[1:] * 9, 1e-6) is None
