"""Sums over depth, and products of normalized rows: formulas, gradients, half precision, and what is kept for these."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import mul

import pytest
import torch
from against_reference import CHECKS, Case
from autograd_memory import kept_for_gradients
from torch import Tensor

from fairseq_residuals.wirings.ops.depth_sum import softmax_sum, softmax_sum_reference, weighted_sum
from fairseq_residuals.wirings.ops.rms_linear import mean_square, rms_linear, rms_linear_reference

EPS = 1e-3


def sums() -> list[Case]:
    """Of one value and of three, in the shape of a decoder's single position too."""
    found = []
    for k in (1, 3):
        for value in ((5, 2, 7), (1, 1, 8)):
            for weights in ((k,), (k, 1), (k, value[-1]), (k, *value[:-1], 1)):
                ops = [lambda w, *v: weighted_sum(w, v), lambda w, *v: sum(map(mul, w, v))]
                found.append(
                    Case(f"weights {weights} {value}", *ops, (weights, *[value] * k), compiled=weights == (3,))
                )
            ops = [lambda d, *v, op=op: op(d, v, EPS) for op in (softmax_sum, softmax_sum_reference)]
            if k > 1:  # the softmax of one number is 1, and has no gradient
                found.append(Case(f"softmax of {k} {value}", *ops, (value[-1:], *[value] * k), compiled=value[0] > 1))
    return found


def products() -> list[Case]:
    """Products of normalized rows: of one dimension before the last and of two, and of a single row."""
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
@pytest.mark.parametrize("case", [*sums(), *products()], ids=lambda case: case.name)
def test_against_reference(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


def test_a_value_twice() -> None:
    """The same tensor at two depths."""
    values, direction = values_and_direction()
    first, second, _ = values
    found, expected = (
        torch.autograd.grad(op(direction, [first, second, first], EPS).square().sum(), (direction, first, second))
        for op in (softmax_sum, softmax_sum_reference)
    )
    torch.testing.assert_close(found, expected)


def test_a_softmax_over_one_value_is_the_value() -> None:
    (value, *_), direction = values_and_direction()
    total = softmax_sum(direction, [value], EPS)
    gradients = torch.autograd.grad(total.square().sum(), (direction, value))
    torch.testing.assert_close((total, *gradients), (value, torch.zeros_like(direction), 2 * value))


def values_and_direction(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Of sizes 0.1 to 10."""
    generator = torch.Generator().manual_seed(5)
    values = [size * torch.randn(4, 2, 8, generator=generator, dtype=torch.float64) for size in (0.1, 1, 10)]
    direction = torch.randn(8, generator=generator, dtype=torch.float64)
    return [value.to(dtype).requires_grad_() for value in values], direction.to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_softmax_sum_in_half_precision(dtype: torch.dtype) -> None:
    found, exact = [], []
    for gradients, precision in ((found, dtype), (exact, torch.float64)):
        values, direction = values_and_direction(dtype)
        values, direction = (
            [v.detach().to(precision).requires_grad_() for v in values],
            direction.detach().to(precision),
        )
        inputs = (direction.requires_grad_(), *values)
        out = softmax_sum(direction, values, EPS)
        assert out.dtype == precision
        gradients += torch.autograd.grad(out.square().sum(), inputs)
    for rounded, gradient in zip(found, exact, strict=True):
        assert rounded.dtype == dtype
        assert (rounded - gradient).norm() < 30 * torch.finfo(dtype).eps * gradient.norm()


def test_softmax_sum_rounds_no_more_than_its_reference() -> None:
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(32, 4, 256, generator=generator).bfloat16() for _ in range(24)]
    direction = (torch.randn(256, generator=generator) / 4).bfloat16()
    exact = softmax_sum_reference(direction.double(), [value.double() for value in values], EPS)
    errors = [(op(direction, values, EPS) - exact).norm() for op in (softmax_sum, softmax_sum_reference)]
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.parametrize("scalar", [True, False])
def test_what_is_kept_are_the_values(scalar: bool) -> None:
    values, direction = values_and_direction()
    weights = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with kept_for_gradients(values[0].numel()) as kept:
        weighted_sum(weights, values) if scalar else softmax_sum(direction, values, EPS)
    assert kept == {value.data_ptr() for value in values}


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
        out = rms_linear(x, weight, centred=True, eps=1e-6)
    assert out.dtype == torch.float32
    assert [t.dtype for t in kept if t.shape == x.shape] == [torch.float16]
    out.sum().backward()
    assert x.grad is not None and weight.grad is not None and x.grad.dtype == weight.grad.dtype == torch.float16
