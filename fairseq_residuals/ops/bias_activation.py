"""Add a bias, activate and drop: what lies between the two products of an FFN.

    out = dropout(act(h + bias))                                                    h, out (..., F), bias (F)

PyTorch reads and writes the largest activations of a layer for each of the three, and once more for the gradient of the
bias. A kernel reads them once in each direction; h is kept, and the seed of the dropout.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_residuals.ops import seeded_dropout
from fairseq_residuals.ops.seeded_dropout import NOTHING_DROPPED, Dropout
from fairseq_residuals.utils.triton_kernels import kernels_run_on

Kind = Literal["relu", "gelu", "gelu_accurate"]
"""By fairseq's names; the last is the approximation by tanh."""


def reference(h: Tensor, bias: Tensor, kind: Kind, dropout: Dropout = NOTHING_DROPPED) -> Tensor:
    """Add, activate and drop."""
    x = h + bias
    activated = F.relu(x) if kind == "relu" else F.gelu(x, approximate="none" if kind == "gelu" else "tanh")
    return seeded_dropout.reference(activated, dropout)


def bias_activation(h: Tensor, bias: Tensor, kind: Kind, dropout: Dropout = NOTHING_DROPPED) -> Tensor:
    """Return what the second product is fed, (..., F) and (F) -> (..., F)."""
    if not kernels_run_on(h, bias):
        return reference(h, bias, kind, dropout)
    return _BiasActivation.apply(h, bias, kind, dropout)  # type: ignore[no-any-return, no-untyped-call]


class _BiasActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor, kind: Kind, dropout: Dropout) -> Tensor:
        from fairseq_residuals.ops.kernels import bias_activation as kernel

        rows = h.reshape(-1, h.size(-1)).contiguous()
        ctx.save_for_backward(rows, bias)
        ctx.kind, ctx.dropout = kind, dropout
        return kernel.forward(rows, bias, kind, dropout).view(h.shape)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        from fairseq_residuals.ops.kernels import bias_activation as kernel

        h, bias = ctx.saved_tensors
        rows = grad_out.reshape(h.shape).contiguous()
        grad_h, grad_bias = kernel.backward(h, bias, rows, ctx.kind, ctx.dropout)
        return grad_h.view(grad_out.shape), grad_bias.to(bias.dtype), None, None
