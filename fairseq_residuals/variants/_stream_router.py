"""What routers between streams are made of: a matrix on a norm, and doubly stochastic matrices from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.core.norms import inverse_rms

STEPS = 20
EPS = 1e-6


def sinkhorn(logits: Tensor) -> Tensor:
    """(n, n, ...) -> the same: exp(logits) with columns, then rows normalised, in turn (Eq. 9 of the mHC paper).

    Rows sum to one; columns of 4 x 4 matrices to 1.5e-4 if the logits' standard deviation is 1, to 0.05 if it is 3, but
    for about one matrix in a thousand. In logarithms each half of a step is one kernel forward and one backward, and no
    logit is too large.
    """
    made: Tensor = Sinkhorn.apply(logits)  # type: ignore[no-untyped-call]
    return made


class Sinkhorn(torch.autograd.Function):
    """:func:`sinkhorn`, which keeps the logits; autograd would keep 40 tensors of their size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        ctx.save_for_backward(logits)
        for _ in range(STEPS):
            logits = logits.log_softmax(0).log_softmax(1)
        return logits.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (logits,) = ctx.saved_tensors
        made = []
        for dim in (0, 1) * STEPS:
            logits = logits.log_softmax(dim)
            made.append((dim, logits))
        gradient = gradient * logits.exp()
        for dim, logits in reversed(made):
            gradient = torch.ops.aten._log_softmax_backward_data(gradient, logits, dim, logits.dtype)
        return gradient


def at_least_single(x: Tensor) -> Tensor:
    """Half precision made single."""
    return x if x.dtype == torch.float64 else x.float()


class NormedProduct(torch.autograd.Function):
    """W x / rms(x) of every row x, of which the mean may be taken first; computed in at least single precision.

    Autograd would keep the norm of x and a copy in that precision, the largest tensors of all; this keeps x itself.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, centred: bool, eps: float) -> Tensor:
        """(N, K), (M, K) -> (M, N)"""
        exact = _exact(x, centred)
        inverse = inverse_rms(exact, eps)
        product = at_least_single(weight) @ exact.T * inverse
        ctx.centred = centred
        ctx.save_for_backward(x, weight, inverse, product)
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        """(M, N) -> (N, K), (M, K)"""
        x, weight, inverse, product = ctx.saved_tensors
        exact, scaled = _exact(x, ctx.centred), gradient * inverse
        along = (gradient * product).sum(0) * inverse.square() / x.size(1)
        of_x = (scaled.T @ at_least_single(weight)).addcmul_(exact, along[:, None], value=-1)
        return _exact(of_x, ctx.centred).to(x.dtype), (scaled @ exact).to(weight.dtype), None, None


def _exact(x: Tensor, centred: bool) -> Tensor:
    x = at_least_single(x)
    return x - x.mean(1, keepdim=True) if centred else x


def normed_product(x: Tensor, weight: Tensor, *, centred: bool, eps: float) -> Tensor:
    """:class:`NormedProduct` of the last dimension of x: (..., K), (M, K) -> (M, ...)."""
    product: Tensor = NormedProduct.apply(x.flatten(0, -2), weight, centred, eps)  # type: ignore[no-untyped-call]
    return product.unflatten(1, x.shape[:-1])


class StreamLogits(nn.Module):
    """One matrix on the root-mean-square norm of all streams of a position, a bias, and a scale that is given."""

    def __init__(self, n: int, dim: int, outputs: int, std: float) -> None:
        """
        Args:
            n, dim: streams, and channels of each.
            std: of the matrix at the start, times (n dim)^-0.5; the bias starts at 0.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, n * dim) * std * (n * dim) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, streams: Tensor, scale: Tensor) -> Tensor:
        """(T, B, n, C), (outputs) -> (outputs, T, B), in at least single precision: positions last, so that what
        follows is made of few large kernels."""
        product = normed_product(streams.flatten(-2), self.weight, centred=False, eps=EPS)
        return torch.addcmul(at_least_single(self.bias)[:, None, None], product, at_least_single(scale)[:, None, None])
