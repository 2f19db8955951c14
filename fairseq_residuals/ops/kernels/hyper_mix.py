"""Read, mix and write n streams; each program has the streams of a position, or of some, one after the other."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_residuals.utils.triton_kernels import kernels_run_on

MOST_STREAMS = 8


@triton.jit
def _tile(position, n, width, N: tl.constexpr, BLOCK: tl.constexpr):
    """Return where the streams of a position are, (N, BLOCK), and which of these numbers there are."""
    stream, column = tl.arange(0, N)[:, None], tl.arange(0, BLOCK)[None, :]
    row = position * n + stream + tl.zeros((N, 1), tl.int64)
    return row * width + column, (stream < n) & (column < width)


@triton.jit
def _row(position, width, BLOCK: tl.constexpr):
    """Return where one vector of a position is, (BLOCK), and which of its numbers there are."""
    column = tl.arange(0, BLOCK)
    return (position + tl.zeros((BLOCK,), tl.int64)) * width + column, column < width


@triton.jit
def _width_forward(
    streams, read, mix, u, mixed, n, width, EACH: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    position = tl.program_id(0)
    of = position if EACH else 0
    stream = tl.arange(0, N)
    at, inside = _tile(position, n, width, N, BLOCK)
    x = tl.load(streams + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(read + of * n + stream, mask=stream < n, other=0.0)
    one, there = _row(position, width, BLOCK)
    tl.store(u + one, tl.sum(weight[:, None] * x, 0).to(u.dtype.element_ty), mask=there)
    for j in range(n):
        weight = tl.load(mix + (of * n + j) * n + stream, mask=stream < n, other=0.0)
        one, there = _row(position * n + j, width, BLOCK)
        tl.store(mixed + one, tl.sum(weight[:, None] * x, 0).to(mixed.dtype.element_ty), mask=there)


@triton.jit
def _width_backward(
    streams, read, mix, grad_u, grad_mixed, grad_streams, grad_read, grad_mix, n, width,
    EACH: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    position = tl.program_id(0)
    of = position if EACH else 0
    stream = tl.arange(0, N)
    at, inside = _tile(position, n, width, N, BLOCK)
    x = tl.load(streams + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(read + of * n + stream, mask=stream < n, other=0.0)
    one, there = _row(position, width, BLOCK)
    grad = tl.load(grad_u + one, mask=there, other=0.0).to(tl.float32)[None, :]
    tl.store(grad_read + position * n + stream, tl.sum(grad * x, 1), mask=stream < n)
    total = weight[:, None] * grad
    for j in range(n):
        weight = tl.load(mix + (of * n + j) * n + stream, mask=stream < n, other=0.0)
        one, there = _row(position * n + j, width, BLOCK)
        grad = tl.load(grad_mixed + one, mask=there, other=0.0).to(tl.float32)[None, :]
        tl.store(grad_mix + (position * n + j) * n + stream, tl.sum(grad * x, 1), mask=stream < n)
        total += weight[:, None] * grad
    tl.store(grad_streams + at, total.to(grad_streams.dtype.element_ty), mask=inside)


@triton.jit
def _depth_forward(
    mixed, write, y, out, n, width, EACH: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    position, stream = tl.program_id(0), tl.arange(0, N)
    of = position if EACH else 0
    at, inside = _tile(position, n, width, N, BLOCK)
    weight = tl.load(write + of * n + stream, mask=stream < n, other=0.0)
    one, there = _row(position, width, BLOCK)
    branch = tl.load(y + one, mask=there, other=0.0).to(tl.float32)
    x = tl.load(mixed + at, mask=inside, other=0.0).to(tl.float32) + weight[:, None] * branch[None, :]
    tl.store(out + at, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _depth_backward(
    grad_out, write, y, grad_write, grad_y, n, width, EACH: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    position, stream = tl.program_id(0), tl.arange(0, N)
    of = position if EACH else 0
    at, inside = _tile(position, n, width, N, BLOCK)
    weight = tl.load(write + of * n + stream, mask=stream < n, other=0.0)
    one, there = _row(position, width, BLOCK)
    branch = tl.load(y + one, mask=there, other=0.0).to(tl.float32)
    grad = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_write + position * n + stream, tl.sum(grad * branch[None, :], 1), mask=stream < n)
    tl.store(grad_y + one, tl.sum(weight[:, None] * grad, 0).to(grad_y.dtype.element_ty), mask=there)


def _shape(streams: Tensor, weights: Tensor) -> dict[str, Any]:
    """Return what the kernels are compiled for; ``weights`` have the streams' leading dimensions or none."""
    n, width = streams.shape[-2:]
    return {"EACH": weights.dim() > 2, "N": triton.next_power_of_2(n), "BLOCK": triton.next_power_of_2(width)}


class _WidthConnection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, read: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(streams, read, mix)
        n, width = streams.shape[-2:]
        u, mixed = streams.new_empty((*streams.shape[:-2], width)), torch.empty_like(streams)
        _width_forward[(u.numel() // width,)](streams, read, mix, u, mixed, n, width, **_shape(streams, read))
        return u, mixed

    @staticmethod
    def backward(ctx: Any, grad_u: Tensor, grad_mixed: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        streams, read, mix = ctx.saved_tensors
        (n, width), leading = streams.shape[-2:], streams.shape[:-2]
        grad_streams = torch.empty_like(streams)
        grad_read, grad_mix = read.new_empty((*leading, 1, n)), mix.new_empty((*leading, n, n))
        _width_backward[(leading.numel(),)](
            streams, read, mix, grad_u.contiguous(), grad_mixed.contiguous(), grad_streams, grad_read, grad_mix, n,
            width, **_shape(streams, read),
        )  # fmt: skip
        return grad_streams, grad_read.sum_to_size(read.shape), grad_mix.sum_to_size(mix.shape)


class _DepthConnection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixed: Tensor, write: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(write, y)
        (n, width), out = mixed.shape[-2:], torch.empty_like(mixed)
        _depth_forward[(y.numel() // width,)](mixed, write, y, out, n, width, **_shape(mixed, write))
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        write, y = ctx.saved_tensors
        n, width = grad_out.shape[-2:]
        grad_write, grad_y = write.new_empty((*y.shape[:-1], n, 1)), torch.empty_like(y)
        _depth_backward[(y.numel() // width,)](
            grad_out.contiguous(), write, y, grad_write, grad_y, n, width, **_shape(grad_out, write)
        )
        return grad_out, grad_write.sum_to_size(write.shape), grad_y


def _serves(streams: Tensor, *weights: Tensor) -> bool:
    in_fp32 = all(w.dtype == torch.float32 and w.dim() in (2, streams.dim()) for w in weights)
    same = len({w.dim() for w in weights}) == 1
    return streams.size(-2) <= MOST_STREAMS and in_fp32 and same and kernels_run_on(streams, *weights)


def width_connection(streams: Tensor, read: Tensor, mix: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return u and X' of an op's arguments; None where there is no kernel for them."""
    if not _serves(streams, read, mix):
        return None
    return _WidthConnection.apply(streams.contiguous(), read.contiguous(), mix.contiguous())  # type: ignore[no-any-return, no-untyped-call]


def depth_connection(mixed: Tensor, write: Tensor, y: Tensor) -> Tensor | None:
    """Return the streams with the output of a sub-layer; None where there is no kernel for the arguments."""
    if not _serves(mixed, write) or y.dtype != mixed.dtype:
        return None
    return _DepthConnection.apply(mixed.contiguous(), write.contiguous(), y.contiguous())  # type: ignore[no-any-return, no-untyped-call]
