"""Compute the weights between several residual streams and one sub-layer, or the stack's output, from the streams."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_residuals.ops.rms_linear import rms_linear
from fairseq_residuals.utils.precision import at_least_fp32

EPS = 1e-6


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


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Compute without rounding the streams, as Pre-LN's stream is not rounded under autocast either."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


class StreamLogits(nn.Module):
    """Multiply the root-mean-square norm of all streams of a position by a matrix, scale it and add a bias."""

    def __init__(self, n: int, dim: int, outputs: int, std: float) -> None:
        """Draw the matrix; the bias starts at 0.

        Args:
            n: streams.
            dim: channels of each.
            outputs: logits per position.
            std: of the matrix, times (n dim)^-0.5.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, n * dim) * std * (n * dim) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, streams: Tensor, scale: Tensor) -> Tensor:
        """Return logits in single precision at least, (T, B, n, C), (outputs) -> (outputs, T, B).

        Positions are last, so that what follows runs as few large kernels.
        """
        logits = rms_linear(streams.flatten(-2), self.weight, centred=False, eps=EPS)
        bias, scale = (at_least_fp32(p)[:, None, None] for p in (self.bias, scale))
        return torch.addcmul(bias, logits, scale)


class LearnedSum(nn.Module):
    """Weigh each stream by a sigmoid and add them up, as the read-out of DeepSeek-V4 does."""

    def __init__(self, n: int, dim: int, std: float) -> None:
        super().__init__()
        self.logits = StreamLogits(n, dim, n, std)
        self.scale = nn.Parameter(torch.full((1,), 0.01))

    def forward(self, streams: Tensor) -> Tensor:
        """(T, B, n, C) -> (T, B, C)"""
        with without_autocast(streams):
            weights = self.logits(streams, self.scale).sigmoid() + EPS
            weights = weights.permute(1, 2, 0).unsqueeze(-2)
            return (weights @ streams.to(weights.dtype)).squeeze(-2).to(streams.dtype)
