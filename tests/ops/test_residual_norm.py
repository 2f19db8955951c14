"""Residual, dropout and norm in one kernel: sums, norms, and the gradients of all that goes in."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, assert_kernel_near, draw, needs_triton
from torch import Tensor
from torch.nn import functional as F

from fairseq_residuals.ops.residual_norm import (
    Norm,
    Summands,
    residual_norm,
    residual_norm_reference,
    residual_sum,
    residual_sum_reference,
)
from fairseq_residuals.ops.seeded_dropout import NOTHING_DROPPED, Dropout

DROPOUTS = {"all stays": NOTHING_DROPPED, "0.3 dropped": Dropout(0.3, torch.tensor([123456789123], device=DEVICE))}
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 2e-2}


@needs_triton
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("has_x", (True, False))
def test_sums_and_their_gradients(dropout: str, dtype: torch.dtype, has_x: bool) -> None:
    def of(op: object) -> object:
        return lambda x, y: op(Summands(x, y, DROPOUTS[dropout], 1.5, 0.7))  # type: ignore[operator]

    inputs = [draw(2, 2, 5, seed=1, dtype=dtype) if has_x else None, draw(2, 2, 5, seed=2, dtype=dtype)]
    assert_kernel_near(of(residual_sum), of(residual_sum_reference), inputs, TOLERANCES[dtype])  # type: ignore[arg-type]


@needs_triton
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kind", ("layer", "layer without bias", "rms", "no gain"))
def test_norms_and_their_gradients(dropout: str, dtype: torch.dtype, kind: str) -> None:
    """Of both results, as a Pre-LN layer uses them."""

    def of(op: object) -> object:
        def run(x: Tensor, y: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> object:
            norm = Norm(weight, bias, 1e-5, kind != "rms")
            return op(Summands(x, y, DROPOUTS[dropout], 1.5, 0.7), norm)  # type: ignore[operator]

        return run

    inputs: list[Tensor | None] = [draw(2, 2, 5, seed=seed, dtype=dtype) for seed in (1, 2)]
    parameters = {"layer": 2, "layer without bias": 1, "rms": 1, "no gain": 0}[kind]
    inputs += [draw(5, seed=3 + i, dtype=dtype) for i in range(parameters)]
    ops = residual_norm, residual_norm_reference
    assert_kernel_near(of(ops[0]), of(ops[1]), inputs, TOLERANCES[dtype])  # type: ignore[arg-type]


@needs_triton
@pytest.mark.parametrize("used", (0, 1))
def test_where_one_result_has_a_gradient(used: int) -> None:
    """The norm alone, as a Post-LN layer uses it, and the sum alone."""
    inputs = [draw(4, 8, seed=1), draw(4, 8, seed=2), *(draw(8, seed=seed) for seed in (3, 4))]
    leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
    gradients = []
    for op, (x, y, weight, bias) in zip((residual_norm, residual_norm_reference), leaves, strict=True):
        out = op(Summands(x, y), Norm(weight, bias, 1e-5))[used]
        gradients.append(torch.autograd.grad((out * draw(4, 8, seed=9)).sum(), (x, y, weight, bias), allow_unused=True))
    for ours, expected in zip(*gradients, strict=True):
        assert (ours is None) == (expected is None)
        if ours is not None:
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@needs_triton
def test_more_rows_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_residuals.ops.kernels import residual_norm as kernel

    monkeypatch.setattr(kernel, "MOST_PROGRAMS", 3)
    inputs = [draw(7, 4, seed=1), draw(7, 4, seed=2), *(draw(4, seed=seed) for seed in (3, 4))]

    def of(op: object) -> object:
        return lambda x, y, weight, bias: op(Summands(x, y), Norm(weight, bias, 1e-5))  # type: ignore[operator]

    assert_kernel_near(of(residual_norm), of(residual_norm_reference), inputs, 1e-6)  # type: ignore[arg-type]


def test_the_reference_is_what_layers_compute() -> None:
    x, y, weight, bias = draw(3, 8, seed=1), draw(3, 8, seed=2), draw(8, seed=3), draw(8, seed=4)
    z, n = residual_norm_reference(Summands(x, y), Norm(weight, bias, 1e-5))
    assert torch.equal(z, x + y) and torch.equal(n, F.layer_norm(x + y, (8,), weight, bias, 1e-5))
    n = residual_norm_reference(Summands(x, y, alpha=2.0, beta=0.5), Norm(weight, None, 1e-6, centred=False))[1]
    assert torch.equal(n, F.rms_norm(2 * x + 0.5 * y, (8,), weight, 1e-6))
