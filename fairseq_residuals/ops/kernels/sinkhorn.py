"""All of Sinkhorn's steps in one kernel; each program has the matrices of some positions."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_residuals.ops.sinkhorn import STEPS
from fairseq_residuals.utils.triton_kernels import kernels_run_on

POSITIONS = 32
"""Of a program, which is one warp: a matrix then lies in the registers of one thread, where its sums are taken."""


@triton.jit
def _log_sums(logits, DIM: tl.constexpr):
    largest = tl.max(logits, DIM)
    return largest + tl.log(tl.sum(tl.exp(logits - tl.expand_dims(largest, DIM)), DIM))


@triton.jit
def _places(count, N: tl.constexpr, BLOCK: tl.constexpr):
    """Return where the matrices of a program are, (N, N, BLOCK), and which of them there are."""
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    entry = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    return entry[:, :, None] * count + position[None, None, :], (position < count)[None, None, :]


@triton.jit
def _forward(logits, matrices, count, HALF_STEPS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    at, inside = _places(count, N, BLOCK)
    x = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
    for _ in range(HALF_STEPS // 2):
        x -= tl.expand_dims(_log_sums(x, 0), 0)
        x -= tl.expand_dims(_log_sums(x, 1), 1)
    tl.store(matrices + at, tl.exp(x).to(matrices.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    logits, grad_matrices, grad_logits, columns, rows, count,
    HALF_STEPS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at, inside = _places(count, N, BLOCK)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # what a half step subtracts, (N, BLOCK), is kept, so that its result can be had again from that of the next
    one = tl.arange(0, N)[:, None] * count + position[None, :]
    there = (position < count)[None, :]
    x = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
    for step in range(HALF_STEPS // 2):
        sums = _log_sums(x, 0)
        tl.store(columns + step * N * count + one, sums, mask=there)
        x -= tl.expand_dims(sums, 0)
        sums = _log_sums(x, 1)
        tl.store(rows + step * N * count + one, sums, mask=there)
        x -= tl.expand_dims(sums, 1)
    grad = tl.load(grad_matrices + at, mask=inside, other=0.0).to(tl.float32) * tl.exp(x)
    for back in range(HALF_STEPS // 2):
        step = HALF_STEPS // 2 - 1 - back
        grad -= tl.exp(x) * tl.expand_dims(tl.sum(grad, 1), 1)
        x += tl.expand_dims(tl.load(rows + step * N * count + one, mask=there, other=0.0), 1)
        grad -= tl.exp(x) * tl.expand_dims(tl.sum(grad, 0), 0)
        x += tl.expand_dims(tl.load(columns + step * N * count + one, mask=there, other=0.0), 0)
    tl.store(grad_logits + at, grad.to(grad_logits.dtype.element_ty), mask=inside)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        logits = logits.contiguous()
        ctx.save_for_backward(logits)
        matrices, count = torch.empty_like(logits), logits[0, 0].numel()
        _forward[(triton.cdiv(count, POSITIONS),)](
            logits, matrices, count, HALF_STEPS=2 * STEPS, N=len(logits), BLOCK=POSITIONS, num_warps=1
        )
        return matrices

    @staticmethod
    def backward(ctx: Any, grad_matrices: Tensor) -> Tensor:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        grad_logits, n, count = torch.empty_like(logits), len(logits), logits[0, 0].numel()
        columns, rows = logits.new_empty((2, STEPS, n, count), dtype=torch.float32)
        _backward[(triton.cdiv(count, POSITIONS),)](
            logits, grad_matrices.contiguous(), grad_logits, columns, rows, count, HALF_STEPS=2 * STEPS, N=n,
            BLOCK=POSITIONS, num_warps=1,
        )  # fmt: skip
        return grad_logits


def sinkhorn(logits: Tensor) -> Tensor | None:
    """Return doubly stochastic matrices of (n, n, ...); None where there is no kernel: n has to be a power of two."""
    n = len(logits)
    if n & (n - 1) or n > 8 or not kernels_run_on(logits):
        return None
    return _Sinkhorn.apply(logits)  # type: ignore[no-any-return, no-untyped-call]
