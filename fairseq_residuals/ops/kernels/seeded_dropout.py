"""Dropout by random numbers of Philox."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def places(row, width, BLOCK: tl.constexpr):
    """Return where a row's numbers are in a matrix (rows, width), which may have more than 2^31 of them: (BLOCK)."""
    column = tl.arange(0, BLOCK)
    return (row + tl.zeros((BLOCK,), tl.int64)) * width + column


@triton.jit
def keeps(seed, row, width, level, BLOCK: tl.constexpr):
    """Return which numbers of a row stay, (BLOCK); one draw of Philox is for four neighbours."""
    counter = row * tl.cdiv(width, 4) + tl.arange(0, BLOCK // 4)
    r0, r1, r2, r3 = tl.randint4x(tl.load(seed), counter)
    bits = tl.reshape(tl.join(tl.join(r0, r2), tl.join(r1, r3)), (BLOCK,))
    return bits.to(tl.int64) >= level


@triton.jit
def _drop(y, out, seed, level, scale, width, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < width, places(row, width, BLOCK)
    value = tl.load(y + at, mask=inside).to(tl.float32)
    value = tl.where(keeps(seed, row, width, level, BLOCK), scale * value, 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


def block_of(width: int) -> int:
    """Return the size of a block that holds a row."""
    return max(4, triton.next_power_of_2(width))


def drop(y: Tensor, seed: Tensor, level: int, scale: float) -> Tensor:
    """Return y (rows, width), contiguous, with some numbers set to zero and the others scaled."""
    rows, width = y.shape
    out = torch.empty_like(y)
    _drop[(rows,)](y, out, seed, level, scale, width, BLOCK=block_of(width))
    return out
