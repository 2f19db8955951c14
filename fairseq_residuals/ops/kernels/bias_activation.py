"""Bias, activation and dropout of an FFN's inner layer, a row at a time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_residuals.ops.kernels.residual_norm import MOST_PROGRAMS
from fairseq_residuals.ops.kernels.seeded_dropout import block_of, keeps, places
from fairseq_residuals.ops.seeded_dropout import Dropout

# numbers are on the right of an operator: Triton's interpreter does not multiply a constant by a block
SQRT_HALF = tl.constexpr(0.7071067811865476)
SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)
CUBIC = tl.constexpr(0.044715)


@triton.jit
def _tanh_of_gelu(x):
    argument = (x + x * x * x * CUBIC) * SQRT_2_OVER_PI
    return 2 * tl.sigmoid(2 * argument) - 1


@triton.jit
def _activated(x, KIND: tl.constexpr):
    if KIND == "relu":
        return tl.maximum(x, 0.0)
    elif KIND == "gelu":
        return 0.5 * x * (1 + tl.erf(x * SQRT_HALF))
    else:
        return 0.5 * x * (1 + _tanh_of_gelu(x))


@triton.jit
def _slope(x, KIND: tl.constexpr):
    if KIND == "relu":
        return tl.where(x > 0, 1.0, 0.0)
    elif KIND == "gelu":
        density = 0.5 * tl.exp(-0.5 * x * x) * SQRT_2_OVER_PI
        return 0.5 * (1 + tl.erf(x * SQRT_HALF)) + x * density
    else:
        t = _tanh_of_gelu(x)
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (1 + 3 * x * x * CUBIC) * SQRT_2_OVER_PI


@triton.jit
def _forward(
    h, bias, out, seed, level, scale, width, KIND: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < width, places(row, width, BLOCK)
    x = tl.load(h + at, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    value = scale * _activated(x, KIND)
    if DROPS:
        value = tl.where(keeps(seed, row, width, level, BLOCK), value, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    h, bias, grad_out, grad_h, grad_bias, seed, level, scale, rows, width,
    KIND: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < width
    shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = places(row, width, BLOCK)
        grad = scale * tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
        grad *= _slope(tl.load(h + at, mask=inside, other=0.0).to(tl.float32) + shift, KIND)
        if DROPS:
            grad = tl.where(keeps(seed, row, width, level, BLOCK), grad, 0.0)
        total += grad
        tl.store(grad_h + at, grad.to(grad_h.dtype.element_ty), mask=inside)
    tl.store(grad_bias + places(program, width, BLOCK), total, mask=inside)


def forward(h: Tensor, bias: Tensor, kind: str, dropout: Dropout) -> Tensor:
    """Return the activations of h (rows, width), contiguous."""
    rows, width = h.shape
    out, drops = torch.empty_like(h), dropout.seed is not None
    shape = {"KIND": kind, "DROPS": drops, "BLOCK": block_of(width)}
    _forward[(rows,)](h, bias, out, dropout.seed, dropout.level, dropout.scale, width, **shape)
    return out


def backward(h: Tensor, bias: Tensor, grad_out: Tensor, kind: str, dropout: Dropout) -> tuple[Tensor, Tensor]:
    """Return the gradients of h, and of the bias in single precision."""
    rows, width = h.shape
    programs, drops = min(rows, MOST_PROGRAMS), dropout.seed is not None
    grad_h = torch.empty_like(h)
    parts = torch.empty((programs, width), dtype=torch.float32, device=h.device)
    shape = {"KIND": kind, "DROPS": drops, "BLOCK": block_of(width)}
    _backward[(programs,)](
        h, bias, grad_out, grad_h, parts, dropout.seed, dropout.level, dropout.scale, rows, width, **shape
    )
    return grad_h, parts.sum(0)
