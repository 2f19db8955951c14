"""Sum tensors over depth, weighted by numbers or by a softmax.

    weighted_sum:   Σ_k w_k v_k
    softmax_sum:    Σ_k a_k v_k,   a = softmax_k(d · v_k / sqrt(mean(v_k²) + eps))

of K values v_k (T, B, C), such as the outputs of all layers so far. Both keep the values alone for the gradient, which
layers hold anyway, and read each once. Stacking them would copy all of them for every layer, and the autograd of the
softmax would make four tensors of a value's size for each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from fairseq_residuals.wirings.ops.rms_linear import mean_square
from fairseq_residuals.wirings.utils.attachable_context import AttachableContext
from fairseq_residuals.wirings.utils.plain_form import differentiable_gradients, plain_form_serves
from fairseq_residuals.wirings.utils.precision import at_least_fp32

around_sum = AttachableContext()
"""Context around the sum of values; its value is the sequence of them."""


def weighted_sum(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Return Σ_k w_k v_k, of (K, ...) and K times (T, B, C), where (...) broadcasts to (T, B, C)."""
    first, *others = weights.unbind()
    with around_sum(values):
        total = first * values[0]
        for weight, value in zip(others, values[1:], strict=True):
            total.add_(weight * value)
    return total


def softmax_sum_reference(direction: Tensor, values: Sequence[Tensor], eps: float) -> Tensor:
    """Weigh the values by a softmax over depth of the products of their norms with ``direction``."""
    stacked = at_least_fp32(torch.stack(list(values)))
    products = rms_norm(stacked, direction.shape, eps=eps) @ at_least_fp32(direction)
    return (products.softmax(0).unsqueeze(-1) * stacked).sum(0).to(values[0].dtype)


def softmax_sum(direction: Tensor, values: Sequence[Tensor], eps: float) -> Tensor:
    """Return Σ_k a_k v_k, of (C) and K times (T, B, C); the softmax is in single precision at least.

    Args:
        direction: d, a query times the gain of the keys' norm.
        values: v_k, of one precision.
        eps: what is added to mean squares.
    """
    if plain_form_serves():
        return softmax_sum_reference(direction, values, eps)
    with around_sum(values):
        total: Tensor = _SoftmaxSum.apply(at_least_fp32(direction), eps, *values)  # type: ignore[no-untyped-call]
    return total


class _SoftmaxSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # direction, eps, values: torch.compile counts names to look for ctx
        direction, eps, *values = inputs
        # the norm's factor follows the product, so that nothing of a value's size is kept
        products = torch.stack([at_least_fp32(value) @ direction for value in values])
        factors = (torch.stack([mean_square(value) for value in values]) + eps).rsqrt()
        shares = (products * factors).softmax(0)
        ctx.eps = eps
        ctx.save_for_backward(direction, products, factors, shares, *values)
        return weighted_sum(shares.unsqueeze(-1), values).to(values[0].dtype)

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        direction, products, factors, shares, *values = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = (direction, ctx.eps, *values)
            return differentiable_gradients(ctx, _plain_softmax_sum, inputs, grad_total)
        grad_shares = torch.stack([(grad_total * value).sum(-1) for value in values])
        grad_logits = shares * (grad_shares - (shares * grad_shares).sum(0))
        grad_products = grad_logits * factors
        # a factor is (v·v / C + eps)^-0.5, so its gradient is along the value
        along_value = -grad_products * products * factors.square() / len(direction)
        of_each = (x.unsqueeze(-1).unbind() for x in (shares, grad_products, along_value))
        rows = grad_products.flatten(1).unbind()
        grad_values, grad_direction = [], torch.zeros_like(direction)
        for share, grad_product, along, row, value in zip(*of_each, rows, values, strict=True):
            grad_value = (share * grad_total).addcmul_(grad_product, direction).addcmul_(along, value)
            grad_values.append(grad_value.to(value.dtype))
            grad_direction += row @ at_least_fp32(value).flatten(0, -2)
        return grad_direction, None, *grad_values


def _plain_softmax_sum(direction: Tensor, eps: float, *values: Tensor) -> Tensor:
    return softmax_sum_reference(direction, values, eps)
