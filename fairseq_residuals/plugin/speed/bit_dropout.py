"""Drop values at random by 16 random bits each.

    out_i = x_i / (1 - d / 2^16) if r_i ≥ d else 0,   r_i uniform in 0 .. 2^16 - 1          x, out (...)

``d`` is the probability in steps of 2^-16. On a CPU, PyTorch's dropout draws a random number of its own for each value
and keeps a mask in the precision of x. Here four values share one draw of 64 bits, and the mask has one byte a value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEVELS = 2**16


def reference(x: Tensor, dropped: int) -> Tensor:
    """Draw the bits, keep the values at or above a level, and scale them."""
    keep = random_levels(x) >= dropped
    return torch.where(keep, x * (LEVELS / (LEVELS - dropped)), 0)


def random_levels(x: Tensor) -> Tensor:
    """Draw a number of 0 .. :data:`LEVELS` - 1 for each value of x, from the global generator of the CPU."""
    return _signed_levels(x).int() + LEVELS // 2


def bit_dropout(x: Tensor, dropped: int) -> Tensor:
    """Set values to zero with probability ``dropped`` / :data:`LEVELS` and scale the others, (...) -> (...)."""
    return _BitDropout.apply(x, dropped)  # type: ignore[no-any-return, no-untyped-call]


def _signed_levels(x: Tensor) -> Tensor:
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    return bits.view(torch.int16)[: x.numel()].view(x.shape)


class _BitDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        keep = _signed_levels(x) >= dropped - LEVELS // 2
        ctx.save_for_backward(keep)
        ctx.scale = LEVELS / (LEVELS - dropped)
        return torch.where(keep, x, 0).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (keep,) = ctx.saved_tensors
        return torch.where(keep, grad_out, 0).mul_(ctx.scale), None
