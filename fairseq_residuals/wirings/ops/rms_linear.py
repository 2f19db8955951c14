"""Multiply the normalized rows of x by a matrix.

    out = W x / sqrt(mean(x²) + eps)                  x (..., K), W (M, K), out (M, ...)

``centred`` subtracts the mean of each row first: LayerNorm instead of RMSNorm, neither with a gain. The result is in
single precision at least. x is the largest tensor: all n residual streams of a position. Autograd would keep its norm
and a copy in single precision; the gradient written out keeps x itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from fairseq_residuals.wirings.utils.plain_form import differentiable_gradients, plain_form_serves
from fairseq_residuals.wirings.utils.precision import at_least_fp32


def rms_linear_reference(x: Tensor, weight: Tensor, centred: bool, eps: float) -> Tensor:
    """Normalize, multiply, and move the outputs to the front."""
    norm = layer_norm if centred else rms_norm
    return (norm(at_least_fp32(x), x.shape[-1:], eps=eps) @ at_least_fp32(weight).mT).movedim(-1, 0)


def rms_linear(x: Tensor, weight: Tensor, *, centred: bool, eps: float) -> Tensor:
    """Multiply the normalized last dimension of x by a matrix: (..., K), (M, K) -> (M, ...)."""
    if plain_form_serves():
        return rms_linear_reference(x, weight, centred, eps)
    out: Tensor = _RMSLinear.apply(x.flatten(0, -2), weight, centred, eps)  # type: ignore[no-untyped-call]
    return out.unflatten(1, x.shape[:-1])


def mean_square(x: Tensor) -> Tensor:
    """Return mean(x²), (..., C) -> (...), in single precision at least, without a copy of x."""
    norm = torch.linalg.vector_norm(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))
    return norm.square() / x.size(-1)


class _RMSLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, centred: bool, eps: float) -> Tensor:
        """(N, K), (M, K) -> (M, N)"""
        exact = _exact(x, centred)
        inverse = (mean_square(exact) + eps).rsqrt()
        out = at_least_fp32(weight) @ exact.T * inverse
        ctx.centred, ctx.eps = centred, eps
        ctx.save_for_backward(x, weight, inverse, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """(M, N) -> (N, K), (M, K)"""
        x, weight, inverse, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradients(ctx, rms_linear_reference, (x, weight, ctx.centred, ctx.eps), grad_out)
        exact, scaled = _exact(x, ctx.centred), grad_out * inverse
        # the norm takes the part of the gradient that is along x
        along = (grad_out * out).sum(0) * inverse.square() / x.size(1)
        grad_x = (scaled.T @ at_least_fp32(weight)).addcmul_(exact, along[:, None], value=-1)
        return _exact(grad_x, ctx.centred).to(x.dtype), (scaled @ exact).to(weight.dtype), None, None


def _exact(x: Tensor, centred: bool) -> Tensor:
    x = at_least_fp32(x)
    return x - x.mean(1, keepdim=True) if centred else x
