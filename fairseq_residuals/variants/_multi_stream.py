"""Several residual streams side by side: what Hyper-Connections and mHC have in common.

A sub-layer is fed a weighted sum of the streams, its output is added to each with a weight, and the streams are mixed;
a router says with which weights. Each stream is a tensor of its own, "x", "x1", "x2", ... (T, B, C); they lie side by
side only within a connection. fairseq's hidden states are the first.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_residuals.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.core.config import option
from fairseq_residuals.performance.matmul_backend import products_by_mkl
from fairseq_residuals.variants._stream_router import EPS, StreamLogits


class Weights(NamedTuple):
    """How a sub-layer is connected to n streams: for every position (T, B, ...), or the same for all (...); in single
    precision where the streams are in half. What a router adds to their start would else be rounded away."""

    read: Tensor
    """(..., 1, n), of the streams in what the sub-layer is fed."""
    write: Tensor
    """(..., n, 1), of its output in each stream."""
    mix: Tensor
    """(..., n, n), of the old streams (last) in each new one."""


def keys(n: int) -> list[str]:
    """What n streams are called."""
    return ["x", *(f"x{i}" for i in range(1, n))]


def side_by_side(s: Stream, n: int) -> Tensor:
    """(T, B, n, C)"""
    return torch.stack([s[key] for key in keys(n)], -2)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """In which the streams are not rounded, as Pre-LN's stream is not under autocast either."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def small_products(x: Tensor) -> AbstractContextManager[None]:
    """In which many tiny matrices are multiplied fast: MKL takes half of oneDNN's time for them."""
    return products_by_mkl() if x.device.type == "cpu" and not torch.compiler.is_compiling() else nullcontext()


class ReadAndMix(torch.autograd.Function):
    """What a sub-layer is fed, (T, B, 1, C), and the mixed streams (T, B, n, C), of :class:`Weights` and streams.

    Autograd would make three tensors of the streams' size for their gradient, and add them up, and would keep a copy of
    the streams in the weights' precision.
    """

    @staticmethod
    def forward(ctx: Any, streams: Tensor, read: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(streams, read, mix)
        exact = streams.to(mix.dtype)
        with small_products(streams):
            return (read @ exact).to(streams.dtype), (mix @ exact).to(streams.dtype)

    @staticmethod
    def backward(ctx: Any, of_fed: Tensor, of_mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        streams, read, mix = ctx.saved_tensors
        exact, of_fed, of_mixed = (x.to(mix.dtype) for x in (streams, of_fed, of_mixed))
        with small_products(streams):
            of_streams = (mix.mT @ of_mixed).addcmul_(read.mT, of_fed).to(streams.dtype)
            of_read, of_mix = (gradient @ exact.mT for gradient in (of_fed, of_mixed))
        return of_streams, of_read.sum_to_size(read.shape), of_mix.sum_to_size(mix.shape)


class Write(torch.autograd.Function):
    """mixed + write y, of mixed streams (T, B, n, C), :class:`Weights` and a sub-layer's output (T, B, 1, C).

    Autograd would make two tensors of the streams' size on the way to the gradients of the latter.
    """

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, write: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(write, y)
        return torch.addcmul(mixed.to(write.dtype), write, y.to(write.dtype)).to(mixed.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        write, y = ctx.saved_tensors
        exact = gradient.to(write.dtype)
        with small_products(y):
            of_write, of_y = exact @ y.to(write.dtype).mT, (write.mT @ exact).to(y.dtype)
        return gradient, of_write.sum_to_size(write.shape), of_y


class StreamsConnection(Connection):
    """Stream: "x", "x1", ... (T, B, C); while the sub-layer runs also "mixed" (T, B, n, C), the new streams but for its
    output, and "write" of :class:`Weights`."""

    def __init__(self, site: Site, n: int, router: nn.Module) -> None:
        """
        Args:
            n: streams.
            router: (T, B, n, C) -> Weights.
        """
        super().__init__(site)
        self.n = n
        self.router = router
        self.norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        streams = side_by_side(s, self.n)
        with without_autocast(streams):
            # tiny matrices are multiplied in one go only if each lies in one piece
            read, write, mix = (w.contiguous() for w in self.router(streams))
            h, mixed = ReadAndMix.apply(streams, read, mix)  # type: ignore[no-untyped-call]
            return self.norm(h.squeeze(-2)), s | {"mixed": mixed, "write": write}

    def write(self, s: Stream, y: Tensor) -> Stream:
        mixed = s["mixed"]
        with without_autocast(mixed):
            streams = Write.apply(mixed, s["write"], y.to(mixed.dtype).unsqueeze(-2))  # type: ignore[no-untyped-call]
        rest = {key: value for key, value in s.items() if key not in ("mixed", "write")}
        return rest | dict(zip(keys(self.n), streams.unbind(-2), strict=True))


class LearnedSum(nn.Module):
    """DeepSeek-V4's read-out: each stream by a sigmoid."""

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


class StreamsVariant(Variant):
    """All streams are the embedding at the bottom; on top their sum, or what a read-out makes of them, and a norm."""

    extension: ClassVar[str] = (
        "Cross-attention is one more sub-layer with a router of its own; encoder and decoder each start with copies of"
        " their embedding and end in one stream."
    )

    @dataclass(frozen=True)
    class Config(Variant.Config):
        n: int = option(4, "streams", minimum=1)
        close: Literal["sum", "learned"] = option("sum", "the streams at the top; learned: as in DeepSeek-V4")

    def __init__(self, config: Any, shape: StackShape, router: float = 1.0) -> None:
        """
        Args:
            router: standard deviation of the read-out's matrix at the start, times (n C)^-0.5.
        """
        super().__init__(config, shape)
        self.norm = shape.new_norm()
        self.read_out = LearnedSum(config.n, shape.dim, router) if config.close == "learned" else None

    def open(self, x: Tensor) -> Stream:
        return dict.fromkeys(keys(self.config.n), x)

    def state(self, s: Stream) -> Tensor:
        streams = side_by_side(s, self.config.n)
        return streams.sum(-2) if self.read_out is None else self.read_out(streams)

    def close(self, s: Stream) -> Tensor:
        return self.norm(self.state(s))
