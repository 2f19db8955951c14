"""Sums over depth, weighted by numbers or by a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.core.norms import inverse_rms
from fairseq_residuals.performance.activation_recompute import keeping


@dataclass(frozen=True)
class DepthWeights:
    """What a wiring has learned to combine over depth, for looks.

    Attributes:
        name: of the weights, as in the equations.
        matrix: (R, K), single precision, on the CPU; nan where a layer would combine what lies above it.
        first_row, first_column: the numbers of the first layers.
        rows, columns: what they are.
    """

    name: str
    matrix: Tensor
    first_row: int
    first_column: int
    rows: str = "into layer"
    columns: str = "output of layer"


def band(size: int, window: int) -> Tensor:
    """(K, K): 1 on the diagonal and below, in the last ``window`` columns of each row if it is not 0; else 0."""
    ones = torch.ones(size, size).tril()
    return ones.triu(1 - window) if window else ones


def weighted_sum(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Σ_k w_k v_k, of (K, ...) and K times (T, B, C), where (...) broadcasts to the latter.

    Nothing of the values' size is kept for the gradient but the values, and each is read once: they are not stacked,
    which would copy all of them for every layer.
    """
    first, *others = weights.unbind()
    with keeping(values):
        total = first * values[0]
        for weight, value in zip(others, values[1:], strict=True):
            total.add_(weight * value)
    return total


def softmax_sum(direction: Tensor, values: Sequence[Tensor], eps: float) -> Tensor:
    """Σ_k softmax_k(sqrt(C) direction . v_k / RMS(v_k)) v_k, of (C) and K times (T, B, C); the softmax is in single
    precision at least, and ``eps`` is added to mean squares."""
    with keeping(values):
        total: Tensor = SoftmaxSum.apply(direction, eps, *values)  # type: ignore[no-untyped-call]
    return total


class SoftmaxSum(torch.autograd.Function):
    """:func:`softmax_sum`; for each value autograd would make four tensors of its size and add them up."""

    @staticmethod
    def forward(ctx: Any, direction: Tensor, eps: float, *values: Tensor) -> Tensor:
        # the norm's factor follows the product, so that nothing of a value's size is made and kept
        products = torch.stack([value @ direction for value in values])
        factors = torch.stack([len(direction) ** 0.5 * inverse_rms(value, eps) for value in values])
        shares = (products * factors).softmax(0)
        ctx.save_for_backward(direction, products, factors, shares, *values)
        return weighted_sum(shares.to(values[0].dtype).unsqueeze(-1), values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        direction, products, factors, shares, *values = ctx.saved_tensors
        width = len(direction)
        of_shares = torch.stack([(gradient * value).sum(-1) for value in values])
        of_logits = shares * (of_shares - (shares * of_shares).sum(0))
        of_products = of_logits * factors
        # a factor is sqrt(C) (v.v / C + eps)^-0.5
        along = -of_products * products * factors.square() / width**2
        of_values, of_direction = [], torch.zeros_like(direction)
        for k, value in enumerate(values):
            share, of_product, back = (x[k].unsqueeze(-1) for x in (shares, of_products, along))
            of_value = (share * gradient).addcmul_(of_product, direction).addcmul_(back, value)
            of_values.append(of_value.to(value.dtype))
            of_direction += of_product.to(value.dtype).flatten() @ value.flatten(0, -2)
        return of_direction, None, *of_values
