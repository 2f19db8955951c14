"""Add a branch to a residual and normalize the sum, a row at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_residuals.ops.kernels.seeded_dropout import block_of, keeps, places
from fairseq_residuals.ops.seeded_dropout import Dropout

MOST_PROGRAMS = 512
"""Of a backward pass: each adds up the gradients of gain and bias over its rows, and PyTorch those of all."""


@triton.jit
def _forward(
    x, y, total, normed, mean, inverse, weight, bias, seed, alpha, beta, level, eps, width,
    HAS_X: tl.constexpr, DROPS: tl.constexpr, NORMS: tl.constexpr, CENTRED: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < width, places(row, width, BLOCK)
    value = beta * tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    if DROPS:
        value = tl.where(keeps(seed, row, width, level, BLOCK), value, 0.0)
    if HAS_X:
        value += alpha * tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = value.to(y.dtype.element_ty)
    tl.store(total + at, value, mask=inside)
    if NORMS:
        # of the rounded sum, which the gradient is computed from
        value = value.to(tl.float32)
        if CENTRED:
            middle = tl.sum(value, 0) / width
            tl.store(mean + row, middle)
            value = tl.where(inside, value - middle, 0.0)
        scale = 1 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
        tl.store(inverse + row, scale)
        value *= scale
        if HAS_WEIGHT:
            value *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        if HAS_BIAS:
            value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(normed + at, value.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    total, grad_total, grad_normed, mean, inverse, weight, seed, grad_x, grad_y, grad_weight, grad_bias, alpha, beta,
    level, rows, width,
    HAS_X: tl.constexpr, DROPS: tl.constexpr, NORMS: tl.constexpr, CENTRED: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_GRAD_TOTAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < width
    if NORMS:
        of_weight, of_bias = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        gain = 1.0
        if HAS_WEIGHT:
            gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = places(row, width, BLOCK)
        grad = tl.zeros((BLOCK,), tl.float32)
        if HAS_GRAD_TOTAL:
            grad += tl.load(grad_total + at, mask=inside, other=0.0).to(tl.float32)
        if NORMS:
            scale = tl.load(inverse + row)
            unit = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
            if CENTRED:
                unit = tl.where(inside, unit - tl.load(mean + row), 0.0)
            unit *= scale
            of_output = tl.load(grad_normed + at, mask=inside, other=0.0).to(tl.float32)
            of_weight += of_output * unit
            of_bias += of_output
            of_unit = of_output * gain
            # the norm takes out of the gradient what is along the row, and LayerNorm its mean too
            along = tl.sum(of_unit * unit, 0) / width
            of_unit -= unit * along
            if CENTRED:
                of_unit -= tl.sum(tl.where(inside, of_output * gain, 0.0), 0) / width
            grad += scale * of_unit
        if HAS_X:
            tl.store(grad_x + at, (alpha * grad).to(grad_x.dtype.element_ty), mask=inside)
        grad *= beta
        if DROPS:
            grad = tl.where(keeps(seed, row, width, level, BLOCK), grad, 0.0)
        tl.store(grad_y + at, grad.to(grad_y.dtype.element_ty), mask=inside)
    if NORMS:
        at = places(program, width, BLOCK)
        tl.store(grad_weight + at, of_weight, mask=inside)
        tl.store(grad_bias + at, of_bias, mask=inside)


class Sum:
    """Launch the kernels of ``alpha x + beta drop(y)``, (rows, width), where the norm may be none."""

    def __init__(self, alpha: float, beta: float, dropout: Dropout, eps: float | None, centred: bool) -> None:
        self.alpha, self.beta, self.level, self.seed = alpha, beta * dropout.scale, dropout.level, dropout.seed
        self.eps, self.centred = eps, centred

    def forward(
        self, x: Tensor | None, y: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the sum, its norm, means and inverse deviations of rows; without a norm the sum alone is filled."""
        rows, width = y.shape
        total, normed = torch.empty_like(y), torch.empty_like(y) if self.eps is not None else y
        mean, inverse = torch.empty((2, rows), dtype=torch.float32, device=y.device)
        _forward[(rows,)](
            x, y, total, normed, mean, inverse, weight, bias, self.seed, self.alpha, self.beta, self.level,
            self.eps or 0.0, width, HAS_X=x is not None, DROPS=self.seed is not None, NORMS=self.eps is not None,
            CENTRED=self.centred, HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None, BLOCK=block_of(width),
        )  # fmt: skip
        return total, normed, mean, inverse

    def backward(
        self, grad_total: Tensor | None, grad_normed: Tensor | None, kept: Sequence[Tensor | None], has_x: bool
    ) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:
        """Return the gradients of x, y, gain and bias; the last two in single precision.

        Args:
            grad_total, grad_normed: (rows, width), not both None.
            kept: the sum, means, inverse deviations and the gain; needed where there is a ``grad_normed``.
            has_x: whether there is an x.
        """
        like, norms = grad_total if grad_normed is None else grad_normed, grad_normed is not None
        assert like is not None
        total, mean, inverse, weight = kept if norms else (None,) * 4
        rows, width = like.shape
        programs = min(rows, MOST_PROGRAMS)
        grad_x, grad_y = torch.empty_like(like) if has_x else None, torch.empty_like(like)
        parts = torch.empty((2, programs, width), dtype=torch.float32, device=like.device) if norms else (None, None)
        _backward[(programs,)](
            total, grad_total, grad_normed, mean, inverse, weight, self.seed, grad_x, grad_y, *parts, self.alpha,
            self.beta, self.level, rows, width, HAS_X=has_x, DROPS=self.seed is not None, NORMS=norms,
            CENTRED=self.centred, HAS_WEIGHT=weight is not None, HAS_GRAD_TOTAL=grad_total is not None,
            BLOCK=block_of(width),
        )  # fmt: skip
        grad_weight, grad_bias = (None if part is None else part.sum(0) for part in parts)
        return grad_x, grad_y, grad_weight, grad_bias
