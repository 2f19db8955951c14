"""Sums over depth: the formulas, their gradients, also in half precision, and what is kept for these."""

from __future__ import annotations

from collections.abc import Callable
from operator import mul

import pytest
import torch
from against_reference import CHECKS, Case
from autograd_memory import kept_for_gradients
from torch import Tensor

from fairseq_residuals.wirings.ops.depth_sum import softmax_sum, softmax_sum_reference, weighted_sum

EPS = 1e-3


def cases() -> list[Case]:
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


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
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
