"""Sums over depth: each program has a position of all values, which are tuples of pointers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_residuals.ops.kernels.residual_norm import MOST_PROGRAMS
from fairseq_residuals.ops.kernels.seeded_dropout import block_of, places
from fairseq_residuals.utils.triton_kernels import kernels_run_on

AT_A_TIME = 8
"""Values of one kernel, so that few kernels are compiled; a sum of more is added up in single precision."""
MOST_SOURCES = 16
"""Of a softmax, whose kernel has all of them."""


@triton.jit
def _add_up(
    values, weights, before, out, positions, width, EACH: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    at, inside = places(row, width, BLOCK), tl.arange(0, BLOCK) < width
    total = tl.zeros((BLOCK,), tl.float32)
    if ADDS:
        total += tl.load(before + at, mask=inside, other=0.0)
    for k in tl.static_range(len(values)):
        weight = tl.load(weights + (k * positions + row if EACH else k)).to(tl.float32)
        total += weight * tl.load(values[k] + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _share_out(
    values, grad_values, weights, grad_out, grad_weights, positions, width, EACH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    at, inside = places(row, width, BLOCK), tl.arange(0, BLOCK) < width
    grad = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
    for k in tl.static_range(len(values)):
        weight = tl.load(weights + (k * positions + row if EACH else k)).to(tl.float32)
        value = tl.load(values[k] + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad_weights + k * positions + row, tl.sum(grad * value, 0))
        tl.store(grad_values[k] + at, (weight * grad).to(grad_out.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_forward(
    values, direction, out, products, factors, shares, eps, positions, width, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, source = tl.program_id(0), tl.arange(0, K)
    at, inside = places(row, width, BLOCK), tl.arange(0, BLOCK) < width
    along = tl.load(direction + tl.arange(0, BLOCK), mask=inside, other=0.0).to(tl.float32)
    logits = tl.full((K,), -float("inf"), tl.float32)
    for k in tl.static_range(len(values)):
        value = tl.load(values[k] + at, mask=inside, other=0.0).to(tl.float32)
        product, factor = tl.sum(value * along, 0), 1 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
        tl.store(products + k * positions + row, product)
        tl.store(factors + k * positions + row, factor)
        logits = tl.where(source == k, product * factor, logits)
    parts = tl.exp(logits - tl.max(logits, 0))
    parts /= tl.sum(parts, 0)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(len(values)):
        share = tl.sum(tl.where(source == k, parts, 0.0), 0)
        tl.store(shares + k * positions + row, share)
        total += share * tl.load(values[k] + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _softmax_backward(
    values, grad_values, direction, grad_out, products, factors, shares, grad_direction, positions, width,
    K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program, source = tl.program_id(0), tl.arange(0, K)
    inside = tl.arange(0, BLOCK) < width
    along = tl.load(direction + tl.arange(0, BLOCK), mask=inside, other=0.0).to(tl.float32)
    of_direction = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, positions, tl.num_programs(0)):
        at = places(row, width, BLOCK)
        grad = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
        there = source < len(values)
        parts = tl.load(shares + source * positions + row, mask=there, other=0.0)
        of_parts = tl.zeros((K,), tl.float32)
        for k in tl.static_range(len(values)):
            value = tl.load(values[k] + at, mask=inside, other=0.0).to(tl.float32)
            of_parts = tl.where(source == k, tl.sum(grad * value, 0), of_parts)
        of_logits = parts * (of_parts - tl.sum(parts * of_parts, 0))
        for k in tl.static_range(len(values)):
            value = tl.load(values[k] + at, mask=inside, other=0.0).to(tl.float32)
            share = tl.sum(tl.where(source == k, parts, 0.0), 0)
            product, factor = tl.load(products + k * positions + row), tl.load(factors + k * positions + row)
            of_product = tl.sum(tl.where(source == k, of_logits, 0.0), 0) * factor
            # a factor is (v·v / C + eps)^-0.5, so its gradient is along the value
            of_value = share * grad + of_product * along - of_product * product * factor * factor / width * value
            tl.store(grad_values[k] + at, of_value.to(grad_out.dtype.element_ty), mask=inside)
            of_direction += of_product * value
    tl.store(grad_direction + places(program, width, BLOCK), of_direction, mask=inside)


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, *values: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *values)
        width, positions = values[0].size(-1), values[0].numel() // values[0].size(-1)
        each, total = weights[0].numel() > 1, values[0]
        for first in range(0, len(values), AT_A_TIME):
            group, last = values[first : first + AT_A_TIME], first + AT_A_TIME >= len(values)
            out = torch.empty_like(values[0], dtype=values[0].dtype if last else torch.float32)
            _add_up[(positions,)](
                group, weights[first:], total, out, positions, width, EACH=each, ADDS=first > 0, BLOCK=block_of(width)
            )
            total = out
        return total

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        weights, *values = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        width, positions = grad_out.size(-1), grad_out.numel() // grad_out.size(-1)
        each, grad_values = weights[0].numel() > 1, [torch.empty_like(value) for value in values]
        grad_weights = torch.empty((len(values), positions), dtype=torch.float32, device=grad_out.device)
        for first in range(0, len(values), AT_A_TIME):
            group = slice(first, first + AT_A_TIME)
            _share_out[(positions,)](
                tuple(values[group]), tuple(grad_values[group]), weights[group], grad_out, grad_weights[group],
                positions, width, EACH=each, BLOCK=block_of(width),
            )  # fmt: skip
        grad_weights = grad_weights if each else grad_weights.sum(1)
        return grad_weights.view(weights.shape).to(weights.dtype), *grad_values


class _SoftmaxSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, direction: Tensor, eps: float, *values: Tensor) -> Tensor:
        width, positions = values[0].size(-1), values[0].numel() // values[0].size(-1)
        out = torch.empty_like(values[0])
        kept = torch.empty((3, len(values), positions), dtype=torch.float32, device=out.device)
        _softmax_forward[(positions,)](
            values, direction, out, *kept, eps, positions, width, K=_sources(values), BLOCK=block_of(width)
        )
        ctx.save_for_backward(direction, kept, *values)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        direction, kept, *values = ctx.saved_tensors
        width, positions = grad_out.size(-1), grad_out.numel() // grad_out.size(-1)
        programs, grad_values = min(positions, MOST_PROGRAMS), [torch.empty_like(value) for value in values]
        parts = torch.empty((programs, width), dtype=torch.float32, device=grad_out.device)
        _softmax_backward[(programs,)](
            tuple(values), tuple(grad_values), direction, grad_out.contiguous(), *kept, parts, positions, width,
            K=_sources(values), BLOCK=block_of(width),
        )  # fmt: skip
        return parts.sum(0).to(direction.dtype), None, *grad_values


def _sources(values: Sequence[Tensor]) -> int:
    return triton.next_power_of_2(len(values))  # type: ignore[no-any-return]


def _serves(values: Sequence[Tensor], *others: Tensor) -> bool:
    alike = all(value.shape == values[0].shape and value.dtype == values[0].dtype for value in values)
    return alike and kernels_run_on(*values, *others)


def weighted_sum(weights: Tensor, values: Sequence[Tensor]) -> Tensor | None:
    """Return Σ_k w_k v_k; None where there is no kernel: weights are numbers, one for each value or position of it."""
    per_value = weights[0].numel()
    each = weights.shape[1:] == (*values[0].shape[:-1], 1)
    if not (per_value == 1 or each) or not _serves(values, weights):
        return None
    return _WeightedSum.apply(weights.contiguous(), *(v.contiguous() for v in values))  # type: ignore[no-any-return, no-untyped-call]


def softmax_sum(direction: Tensor, values: Sequence[Tensor], eps: float) -> Tensor | None:
    """Return Σ_k a_k v_k; None where there is no kernel, as for many values."""
    if len(values) > MOST_SOURCES or not _serves(values, direction):
        return None
    return _SoftmaxSum.apply(direction, eps, *(v.contiguous() for v in values))  # type: ignore[no-any-return, no-untyped-call]
