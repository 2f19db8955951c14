"""Dropout for CPUs: 16 random bits for each value instead of a number of its own, and a mask of one byte, not four."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor

LEVELS = 2**16


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        """``dropped``: of :data:`LEVELS`, how many are zero."""
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        levels = bits.view(torch.int16)[: x.numel()].view(x.shape)
        keep = levels >= dropped - LEVELS // 2
        ctx.save_for_backward(keep)
        ctx.scale = LEVELS / (LEVELS - dropped)
        return torch.where(keep, x, 0).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (keep,) = ctx.saved_tensors
        return torch.where(keep, d_out, 0).mul_(ctx.scale), None


class FastDropout(FairseqDropout):  # type: ignore[misc]
    """On a CPU, in training, with the probability rounded to a multiple of 2^-16; elsewhere as fairseq's."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        dropped = round(self.p * LEVELS)
        here = self.training and x.device.type == "cpu" and torch.is_grad_enabled() and 0 < dropped < LEVELS
        if not here or torch.compiler.is_compiling():  # what compiles fuses fairseq's, and would break off at this one
            return super().forward(x, inplace)
        return _Dropout.apply(x, dropped)
