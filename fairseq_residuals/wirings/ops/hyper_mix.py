"""Read, mix and write n residual streams that lie side by side.

For streams X (..., n, C), a sub-layer F and weights that may differ at each position::

    u    = Σ_i read_i X_i          width connection      read (..., 1, n), u (..., C)
    X'_j = Σ_i mix_ji X_i                                mix (..., n, n)
    X_j  = X'_j + write_j F(u)     depth connection      write (..., n, 1)

The weights either have the leading dimensions of the streams or none. They are in single precision where the streams
are in half precision; results are computed in the weights' precision and rounded once to that of the streams. Autograd
would make three tensors of the streams' size for the gradient of the streams, and keep a copy of them in the weights'
precision. The gradients written out keep the streams once and make one tensor.

:func:`sinkhorn` makes mix of logits (n, n, ...), doubly stochastic by the steps of Sinkhorn and Knopp (Eq. 9 of the mHC
paper): M_0 = exp(logits), M_t = rows(columns(M_{t-1})), t = 1 .. 20, where columns (dimension 0) and rows (dimension 1)
divide by their sums. Rows then sum to one. Columns of 4 x 4 matrices sum to one within 1.5e-4 if the logits' standard
deviation is 1, within 0.05 if it is 3, but for about one matrix in a thousand. The fast form works on logarithms, so
that no logit is too large, and keeps the logits alone, where autograd would keep 40 tensors of their size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.utils.attachable_context import AttachableContext
from fairseq_residuals.wirings.utils.torch_private import is_transforming, log_softmax_backward

STEPS = 20
around_small_products = AttachableContext()
"""Context around the products of many tiny matrices; its value is one of the factors."""


def width_connection_reference(streams: Tensor, read: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute u and X' as two products of matrices."""
    exact = streams.to(mix.dtype)
    return (read @ exact).squeeze(-2).to(streams.dtype), (mix @ exact).to(streams.dtype)


def width_connection(streams: Tensor, read: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute u, what a sub-layer is fed, and X', the mixed streams.

    Shapes: (..., n, C), (..., 1, n), (..., n, n) -> (..., C), (..., n, C).
    """
    if is_transforming():
        return width_connection_reference(streams, read, mix)
    # tiny matrices are multiplied in one call only if all of them are contiguous
    return _WidthConnection.apply(streams, read.contiguous(), mix.contiguous())  # type: ignore[no-any-return, no-untyped-call]


class _WidthConnection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, read: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(streams, read, mix)
        with around_small_products(streams):
            return width_connection_reference(streams, read, mix)

    @staticmethod
    def backward(ctx: Any, grad_u: Tensor, grad_mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        streams, read, mix = ctx.saved_tensors
        exact, grad_u, grad_mixed = (x.to(mix.dtype) for x in (streams, grad_u.unsqueeze(-2), grad_mixed))
        with around_small_products(streams):
            grad_streams = (mix.mT @ grad_mixed).addcmul_(read.mT, grad_u).to(streams.dtype)
            grad_read, grad_mix = grad_u @ exact.mT, grad_mixed @ exact.mT
        return grad_streams, grad_read.sum_to_size(read.shape), grad_mix.sum_to_size(mix.shape)


def depth_connection(mixed: Tensor, write: Tensor, y: Tensor) -> Tensor:
    """Add the output of a sub-layer to each mixed stream: (..., n, C), (..., n, 1), (..., C) -> (..., n, C)."""
    y = y.to(mixed.dtype).unsqueeze(-2).to(write.dtype)
    return torch.addcmul(mixed.to(write.dtype), write, y).to(mixed.dtype)


def sinkhorn(logits: Tensor) -> Tensor:
    """Return doubly stochastic matrices, (n, n, ...) -> (n, n, ...); positions are the last dimensions."""
    return _balanced(logits) if is_transforming() else _Sinkhorn.apply(logits)  # type: ignore[no-any-return, no-untyped-call]


def _balanced(logits: Tensor) -> Tensor:
    """Take the steps on logarithms."""
    for dim in (0, 1) * STEPS:
        logits = logits.log_softmax(dim)
    return logits.exp()


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        return _balanced(logits)

    @staticmethod
    def backward(ctx: Any, grad_matrices: Tensor) -> Tensor:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        steps = []
        for dim in (0, 1) * STEPS:
            logits = logits.log_softmax(dim)
            steps.append((dim, logits))
        grad_logits = grad_matrices * logits.exp()
        for dim, logits in reversed(steps):
            grad_logits = log_softmax_backward(grad_logits, logits, dim)
        return grad_logits
