"""Wire a stack by n residual streams: what Hyper-Connections, mHC and their relatives share.

Each sub-layer F has a router, which says with which weights it is connected::

    width connection     u = Σ_i read_i X_i,   X'_j = Σ_i mix_ji X_i
    branch               y = F(LN(u))
    depth connection     X_j = X'_j + write_j y

Each stream is a tensor of its own, "x", "x1", "x2", ... (T, B, C), so that fairseq's hidden states are the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.ops.hyper_mix import depth_connection, width_connection
from fairseq_residuals.wirings.ops.rms_linear import rms_linear
from fairseq_residuals.wirings.utils.precision import at_least_fp32, without_autocast
from fairseq_residuals.wirings.variants.pre_ln import TopNorm

ROUTER_EPS = 1e-6


def stream_keys(n: int) -> list[str]:
    """Return the names of n streams."""
    return ["x", *(f"x{i}" for i in range(1, n))]


def stack_streams(s: Stream, n: int) -> Tensor:
    """Return n streams in one tensor, (T, B, n, C)."""
    return torch.stack([s[key] for key in stream_keys(n)], -2)


class Weights(NamedTuple):
    """Connect a sub-layer to n streams, for every position (T, B, ...) or alike for all (...).

    In single precision where the streams are in half: what a router adds to their start would be rounded away.
    """

    read: Tensor
    """(..., 1, n), shares of the streams in what the sub-layer is fed."""
    write: Tensor
    """(..., n, 1), shares of its output in each stream."""
    mix: Tensor
    """(..., n, n), shares of the old streams (last) in each new one."""


class StreamLogits(nn.Module):
    """Multiply the root-mean-square norm of all streams of a position by a matrix, scale it and add a bias.

    The standard deviation of the matrix starts at ``std`` (n C)^-0.5, the bias at 0. With ``gain`` the norm has a gain,
    of which "gamma" is the distance from 1.
    """

    def __init__(self, shape: StackShape, n: int, outputs: int, std: float, gain: bool = False) -> None:
        super().__init__()
        width = n * shape.dim
        self.eps = shape.eps(ROUTER_EPS)
        self.gamma = nn.Parameter(torch.zeros(width)) if gain else None
        self.weight = nn.Parameter(torch.randn(outputs, width) * std * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, streams: Tensor, scale: Tensor) -> Tensor:
        """Return logits in single precision at least, positions last: (T, B, n, C), (outputs) -> (outputs, T, B)."""
        matrix = self.weight if self.gamma is None else at_least_fp32(self.weight) * (1 + at_least_fp32(self.gamma))
        logits = rms_linear(streams.flatten(-2), matrix, centred=False, eps=self.eps)
        bias, scale = (at_least_fp32(p).view(-1, *[1] * (logits.dim() - 1)) for p in (self.bias, scale))
        return torch.addcmul(bias, logits, scale)


class StreamsConnection(Connection):
    """Connect a sub-layer to n streams, "x", "x1", ... (T, B, C), by what ``router`` says, (T, B, n, C) -> Weights.

    While the sub-layer runs the stream also has "mixed" (T, B, n, C), the new streams but for the sub-layer's output,
    and "write" of :class:`Weights`.
    """

    def __init__(self, site: Site, n: int, router: nn.Module | None = None) -> None:
        """Keep the router; without one, :meth:`route` is another's, and there is no norm."""
        super().__init__(site)
        self.n = n
        self.router = router
        self.norm = None if router is None else site.new_norm()

    def route(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the sub-layer is fed (T, B, C), "mixed" and "write"."""
        assert self.router is not None and self.norm is not None
        weights = self.router(streams)
        u, mixed = width_connection(streams, weights.read, weights.mix)
        return self.norm(u), mixed, weights.write

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        streams = stack_streams(s, self.n)
        with without_autocast(streams):
            u, mixed, write = self.route(streams)
        return u, s | {"mixed": mixed, "write": write}

    def write(self, s: Stream, y: Tensor) -> Stream:
        s = dict(s)
        mixed, weight = s.pop("mixed"), s.pop("write")
        with without_autocast(mixed):
            streams = depth_connection(mixed, weight, y)
        return s | dict(zip(stream_keys(self.n), streams.unbind(-2), strict=True))


class StreamsVariant(TopNorm):
    """Start all streams as the embedding, and end in the norm of their sum."""

    extension: ClassVar[str] = (
        "Cross-attention is one more sub-layer with a router of its own; encoder and decoder each start with copies of"
        " their embedding and end in one stream."
    )

    @dataclass(frozen=True)
    class Config(Variant.Config):
        n: int = option(4, "streams", minimum=1, maximum=64)

    def open(self, x: Tensor) -> Stream:
        return dict.fromkeys(stream_keys(self.config.n), x)

    def layer_output(self, s: Stream) -> Tensor:
        return stack_streams(s, self.config.n).sum(-2)


class LearnedSum(nn.Module):
    """Weigh each stream by a sigmoid and add them up, as the read-out of DeepSeek-V4 does."""

    def __init__(self, n: int, shape: StackShape, std: float) -> None:
        super().__init__()
        self.logits = StreamLogits(shape, n, n, std)
        self.scale = nn.Parameter(torch.full((1,), 0.01))

    def forward(self, streams: Tensor) -> Tensor:
        """(T, B, n, C) -> (T, B, C)"""
        with without_autocast(streams):
            weights = self.logits(streams, self.scale).sigmoid() + ROUTER_EPS
            weights = weights.movedim(0, -1).unsqueeze(-2)
            return (weights @ streams.to(weights.dtype)).squeeze(-2).to(streams.dtype)


class ReadOutVariant(StreamsVariant):
    """Offer as an end the norm of the sum, or of a learned sum, whose matrix starts with ``std``."""

    @dataclass(frozen=True)
    class Config(StreamsVariant.Config):
        close: Literal["sum", "learned"] = option("sum", "the streams at the top; learned: as in DeepSeek-V4")

    def __init__(self, config: Any, shape: StackShape, std: float = 1.0) -> None:
        super().__init__(config, shape)
        self.read_out = LearnedSum(config.n, shape, std) if config.close == "learned" else None

    def layer_output(self, s: Stream) -> Tensor:
        if self.read_out is None:
            return super().layer_output(s)
        return self.read_out(stack_streams(s, self.config.n))  # type: ignore[no-any-return]

    @staticmethod
    def total(streams: str, o: Any) -> str:
        """Return the sum in the equations."""
        logit = f"scale[0] dot(weight[j], RMS([{streams}[i] for i = 0..n-1])) + bias[j]"
        weight = f"(sigmoid({logit}) + 10^-6) " if o.close == "learned" else ""
        return f"sum_{{j=0..n-1}} {weight}{streams}[j]"
