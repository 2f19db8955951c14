"""Compute the weights between several residual streams and one sub-layer, or the stack's output, from the streams."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.ops.rms_linear import rms_linear
from fairseq_residuals.wirings.utils.precision import at_least_fp32

ROUTER_EPS = 1e-6


class Weights(NamedTuple):
    """Connect a sub-layer to n streams, for every position (T, B, ...) or alike for all (...).

    In single precision where the streams are in half: what a router adds to their start would be rounded away.
    """

    read: Tensor
    """(..., 1, n), of the streams in what the sub-layer is fed."""
    write: Tensor
    """(..., n, 1), of its output in each stream."""
    mix: Tensor
    """(..., n, n), of the old streams (last) in each new one."""


class StreamLogits(nn.Module):
    """Multiply the root-mean-square norm of all streams of a position by a matrix, scale it and add a bias."""

    def __init__(self, n: int, dim: int, outputs: int, std: float, gain: bool = False, eps: float = ROUTER_EPS) -> None:
        """Draw the matrix; the bias starts at 0.

        Args:
            n: streams.
            dim: channels of each.
            outputs: logits per position.
            std: of the matrix, times (n dim)^-0.5.
            gain: whether the norm has a gain, of which "gamma" is the distance from 1.
            eps: of the norm.
        """
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.zeros(n * dim)) if gain else None
        self.weight = nn.Parameter(torch.randn(outputs, n * dim) * std * (n * dim) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, streams: Tensor, scale: Tensor) -> Tensor:
        """Return logits in single precision at least, (T, B, n, C), (outputs) -> (outputs, T, B).

        Positions are last, so that what follows runs as few large kernels.
        """
        matrix = self.weight if self.gamma is None else at_least_fp32(self.weight) * (1 + at_least_fp32(self.gamma))
        logits = rms_linear(streams.flatten(-2), matrix, centred=False, eps=self.eps)
        bias, scale = (at_least_fp32(p)[:, None, None] for p in (self.bias, scale))
        return torch.addcmul(bias, logits, scale)


GATES = (
    "pre[i] = sigmoid(scale[0] z[i] + bias[i]) for i = 0..n-1",
    "post[j] = 2 sigmoid(scale[1] z[n+j] + bias[n+j]) for j = 0..n-1",
)
"""The equations of what a sub-layer reads and writes, where it does so as in mHC."""


class GatedRouter(nn.Module):
    """Compute the weights of one sub-layer as mHC does: pre = sigmoid, post = 2 sigmoid, and a matrix that mixes.

    "logits" are n for pre, n for post and those of the matrix, each group with a "scale" of its own.
    """

    def __init__(self, n: int, logits: StreamLogits) -> None:
        super().__init__()
        self.n = n
        self.logits = logits
        self.sizes = [n, n, len(logits.bias) - 2 * n]
        self.scale = nn.Parameter(torch.full((3 if self.sizes[2] else 2,), 0.01))

    def mix(self, logits: Tensor) -> Tensor:
        """Return the matrix of :class:`Weights`, (outputs, T, B) -> (T, B, n, n) or (n, n)."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it mixes streams")

    def forward(self, streams: Tensor) -> Weights:
        """Return weights in single precision at least, of streams (T, B, n, C)."""
        sizes = [size for size in self.sizes if size]
        scale = torch.cat([s.expand(k) for s, k in zip(self.scale.unbind(), sizes, strict=True)])
        gates, mixing = self.logits(streams, scale).split([2 * self.n, self.sizes[2]])
        pre, post = gates.sigmoid().unflatten(0, (2, self.n)).permute(0, 2, 3, 1).unsqueeze(-1).unbind()
        return Weights(read=pre.mT, write=2 * post, mix=self.mix(mixing))
