"""Wire a stack by n residual streams: what Hyper-Connections and mHC have in common.

Each sub-layer F has a router, which says with which weights it is connected::

    width connection     u = Σ_i read_i X_i,   X'_j = Σ_i mix_ji X_i
    branch               y = F(LN(u))
    depth connection     X_j = X'_j + write_j y

Each stream is a tensor of its own, "x", "x1", "x2", ... (T, B, C), so that fairseq's hidden states are the first; they
are stacked only within a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.ops.hyper_mix import depth_connection, width_connection
from fairseq_residuals.wirings.utils.precision import without_autocast


def stream_keys(n: int) -> list[str]:
    """Return the names of n streams."""
    return ["x", *(f"x{i}" for i in range(1, n))]


def stack_streams(s: Stream, n: int) -> Tensor:
    """Return n streams in one tensor, (T, B, n, C)."""
    return torch.stack([s[key] for key in stream_keys(n)], -2)


class StreamsConnection(Connection):
    """Connect a sub-layer to n streams, "x", "x1", ... (T, B, C).

    While the sub-layer runs the stream also has "mixed" (T, B, n, C), the new streams but for the sub-layer's output,
    and "write" of :class:`.Weights`.
    """

    def __init__(self, site: Site, n: int, router: nn.Module) -> None:
        """Keep the router.

        Args:
            site: where the connection sits.
            n: streams.
            router: (T, B, n, C) -> :class:`.Weights`.
        """
        super().__init__(site)
        self.n = n
        self.router = router
        self.norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        streams = stack_streams(s, self.n)
        with without_autocast(streams):
            weights = self.router(streams)
            u, mixed = width_connection(streams, weights.read, weights.mix)
            return self.norm(u), s | {"mixed": mixed, "write": weights.write}

    def write(self, s: Stream, y: Tensor) -> Stream:
        s = dict(s)
        mixed, weight = s.pop("mixed"), s.pop("write")
        with without_autocast(mixed):
            streams = depth_connection(mixed, weight, y)
        return s | dict(zip(stream_keys(self.n), streams.unbind(-2), strict=True))


class StreamsVariant(Variant):
    """Start all streams as the embedding, and end in the norm of their sum."""

    norms_each: ClassVar[bool] = False
    """Whether each stream passes the norm on top, before they are added."""
    extension: ClassVar[str] = (
        "Cross-attention is one more sub-layer with a router of its own; encoder and decoder each start with copies of"
        " their embedding and end in one stream."
    )

    @dataclass(frozen=True)
    class Config(Variant.Config):
        n: int = option(4, "streams", minimum=1, maximum=64)

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.norm = shape.new_norm()

    def open(self, x: Tensor) -> Stream:
        return dict.fromkeys(stream_keys(self.config.n), x)

    def layer_output(self, s: Stream) -> Tensor:
        streams = stack_streams(s, self.config.n)
        return (self.norm(streams) if self.norms_each else streams).sum(-2)

    def close(self, s: Stream) -> Tensor:
        return self.layer_output(s) if self.norms_each else self.norm(self.layer_output(s))
