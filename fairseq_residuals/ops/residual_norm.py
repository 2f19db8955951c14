"""Add a branch to the residual stream and normalize the sum.

    z = α x + β dropout(y)                                                         residual_sum
    n = (z - mean(z)) / sqrt(var(z) + eps) * weight + bias                         residual_norm; x, y, z, n (..., C)

or n = z / sqrt(mean(z²) + eps) * weight, by RMSNorm. A Post-LN layer goes on with n, a Pre-LN layer with both. PyTorch
reads and writes the stream in each of three kernels, and keeps a mask; here one kernel does all of it, and one its
gradient. z, two numbers a row and the seed of the dropout are kept. A kernel computes in single precision and rounds z
and n once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from fairseq_residuals.ops import seeded_dropout
from fairseq_residuals.ops.seeded_dropout import NOTHING_DROPPED, Dropout
from fairseq_residuals.utils.triton_kernels import kernels_run_on


class Norm(NamedTuple):
    """A LayerNorm, or where it is not ``centred`` an RMSNorm, over the channels; gain and bias (C) may be missing."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool = True


class Summands(NamedTuple):
    """What is added up: α x + β dropout(y)."""

    x: Tensor | None
    y: Tensor
    dropout: Dropout = NOTHING_DROPPED
    alpha: float = 1.0
    beta: float = 1.0


def residual_sum_reference(summands: Summands) -> Tensor:
    """Drop, multiply and add."""
    x, y, dropout, alpha, beta = summands
    branch = seeded_dropout.reference(y, dropout)
    branch = branch if beta == 1 else beta * branch
    return branch if x is None else (x if alpha == 1 else alpha * x) + branch


def residual_norm_reference(summands: Summands, norm: Norm) -> tuple[Tensor, Tensor]:
    """Normalize the sum: return it, and its norm."""
    z = residual_sum_reference(summands)
    if norm.centred:
        return z, layer_norm(z, z.shape[-1:], norm.weight, norm.bias, norm.eps)
    return z, rms_norm(z, z.shape[-1:], norm.weight, norm.eps)


def residual_sum(summands: Summands) -> Tensor:
    """Return z (..., C)."""
    if not kernels_run_on(summands.x, summands.y):
        return residual_sum_reference(summands)
    return _ResidualNorm.apply(summands.x, summands.y, None, None, summands, None)[0]  # type: ignore[no-any-return, no-untyped-call]


def residual_norm(summands: Summands, norm: Norm) -> tuple[Tensor, Tensor]:
    """Return z and n, both (..., C)."""
    if not kernels_run_on(summands.x, summands.y, norm.weight, norm.bias):
        return residual_norm_reference(summands, norm)
    leaves = summands.x, summands.y, norm.weight, norm.bias
    return _ResidualNorm.apply(*leaves, summands, norm)  # type: ignore[no-any-return, no-untyped-call]


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        y: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        summands: Summands,
        norm: Norm | None,
    ) -> tuple[Tensor, Tensor | None]:
        from fairseq_residuals.ops.kernels.residual_norm import Sum

        eps, centred = (None, True) if norm is None else (norm.eps, norm.centred)
        ctx.sum = Sum(summands.alpha, summands.beta, summands.dropout, eps, centred)
        total, normed, mean, inverse = ctx.sum.forward(None if x is None else _rows(x), _rows(y), weight, bias)
        # the seed is saved by the launcher: it is on the device, and nobody writes to it
        ctx.save_for_backward(*((total, mean, inverse, weight) if norm is not None else ()))
        ctx.has_x, ctx.dtypes = x is not None, [None if p is None else p.dtype for p in (weight, bias)]
        ctx.set_materialize_grads(False)
        return total.view(y.shape), None if norm is None else normed.view(y.shape)

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor | None, grad_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        given = grad_total if grad_normed is None else grad_normed
        if given is None:
            return (None,) * 6
        rows = (None if grad is None else _rows(grad) for grad in (grad_total, grad_normed))
        grad_x, grad_y, *grad_norm = ctx.sum.backward(*rows, ctx.saved_tensors, ctx.has_x)
        of_norm = (
            grad.to(dtype) if dtype is not None and grad is not None else None
            for grad, dtype in zip(grad_norm, ctx.dtypes, strict=True)
        )
        grad_x = None if grad_x is None else grad_x.view(given.shape)
        return grad_x, grad_y.view(given.shape), *of_norm, None, None


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.size(-1)).contiguous()
