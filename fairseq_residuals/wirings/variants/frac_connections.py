"""Frac-Connections: Hyper-Connections between m fractions of one stream's channels, instead of copies of it.

::

    X_1..X_m ─┬─► [Σ_i read_ic X_i for c] ─► LN ─► F ─► y_c · write_c ─► + ─► X'_1..X'_m        output: LN([X_c])
              └─► Σ_i mix_ic X_i ────────────────────────────────────────┘

Zhu et al. 2025 (2503.14125). The stream keeps its C channels, X_i is the i-th m-th of them. Of the LayerNorm of X_i two
matrices make row i of read and mix, and the number write_i, by tanh, each added to a static value with a scale that
starts at 0.01. The matrices start at 0, read and mix at the identity, and write at 1: exactly as Pre-LN.

No code was published; written after wdlctc/hyper-connection-factory@412aeba (``connections/hyper.py``), a
third party's. ``num_fracs`` of hyper-connections 0.4.11 is something else: its second fraction is never read. By our
choice cross-attention has connections of its own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.utils.precision import without_autocast
from fairseq_residuals.wirings.variants.hyper_connections import TanhRouter
from fairseq_residuals.wirings.variants.pre_ln import TopNorm


class FracConnection(Connection):
    """While the sub-layer runs the stream also has "mixed" (T, B, m, C / m) and "write" (T, B, m, 1)."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.m = m = site.config.m
        static = torch.cat([torch.eye(m), torch.eye(m), torch.ones(m, 1)], 1)
        self.router = TanhRouter(static, site.dim // m, dynamic=True, eps=site.eps(1e-5))
        self.norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        x = s["x"].unflatten(-1, (self.m, -1))
        with without_autocast(x):
            read, mix, write = self.router(x).split([self.m, self.m, 1], -1)
            exact = x.to(read.dtype)
            u, mixed = ((matrix.mT @ exact).to(x.dtype) for matrix in (read, mix))
            return self.norm(u.flatten(-2)), s | {"mixed": mixed, "write": write}

    def write(self, s: Stream, y: Tensor) -> Stream:
        s = dict(s)
        mixed, weight = s.pop("mixed"), s.pop("write")
        return s | {"x": (mixed + weight * y.unflatten(-1, (self.m, -1))).to(mixed.dtype).flatten(-2)}


@register_variant("frac_connections")
class FracConnections(TopNorm):
    title = "Frac-Connections"
    paper = "Zhu et al. 2025, Frac-Connections: Fractional Extension of Hyper-Connections"
    year = 2025
    starts_as = "pre_ln"
    verified = "a third party's code (the authors published none), decoder alone: activations, gradients"
    extension = "Cross-attention is one more sub-layer with a router of its own."
    connection = FracConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        m: int = option(2, "fractions; they divide the channels", minimum=1, maximum=64)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "X[i] = part(x, i, m) for i = 0..m-1",
            "Z[i] = gain * standardize(X[i]) + bias for i = 0..m-1",
            "W[i,c] = static[i,c] + scale[0] tanh(dot(dynamic[c], Z[i])) for i = 0..m-1, c = 0..2 m - 1",
            "w[c] = static[c,2 m] + scale[1] tanh(dot(dynamic[2 m], Z[c])) for c = 0..m-1",
            "y = F(LN([sum_{i=0..m-1} W[i,c] X[i] for c = 0..m-1]))",
            "x = [w[c] part(y, c, m) + sum_{i=0..m-1} W[i,m+c] X[i] for c = 0..m-1]",
            "output LN(x)",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        if shape.dim % config.m:
            raise UserError(
                f"option m={config.m} of wiring 'frac_connections' must divide the {shape.dim} channels of the"
                f" {shape.stack}"
            )
