"""mHC: Hyper-Connections whose mixing matrices are doubly stochastic, so that no depth amplifies the streams.

::

    X_1..X_n ─┬─► Σ pre_i X_i ─► LN ─► F ─► · post_j ─► + ─► X'_1..X'_n        output: LN(Σ X_j)
              └─► Σ_i res_ji X_i ───────────────────────┘

Xie et al. 2025, "mHC: Manifold-Constrained Hyper-Connections", Eq. 7 to 9 and 14 to 19. From the root-mean-square norm
of all n C numbers of a position, one matrix makes three groups of logits, each times a learned scale (at first 0.01)
plus a learned bias: pre = sigmoid, post = 2 sigmoid, and res = exp, columns and rows normalised in turn 20 times
(Sinkhorn and Knopp). Rows then sum to one, columns nearly. No code was published.

The paper tells neither how the matrix and the biases start nor how the streams end; ours: N(0, ``router``^2 / (n C)),
zero, the sum. ``mixing=identity`` starts the biases of res at 4 I, ``close=learned`` is the read-out of DeepSeek-V4
(huggingface/transformers 5.23.0, ``deepseek_v4``). Streams that start alike and are treated alike stay alike but for
rounding; only the matrix tells them apart, so it may not start at zero, nor close to it. In the first sub-layer they
are still alike, and mixing them does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.base import Connection, Shape, Site, Stream
from fairseq_residuals.options import option
from fairseq_residuals.registry import register_variant
from fairseq_residuals.routers import EPS, StreamLogits, sinkhorn
from fairseq_residuals.streams import StreamsConnection, StreamsVariant, Weights, side_by_side, without_autocast
from modern_fairseq.errors import UserError

LEAST_ROUTER = 0.01
"""With it the streams of a small model differed by 8e-4 of their size after 300 updates of Adam. With less they part
later, and where the matrix is no more than rounding, never."""


class MHCRouter(nn.Module):
    """Outputs of "logits": n for pre, n for post, n n for res (row by row); "scale" of each."""

    def __init__(self, site: Site, n: int, std: float, identity: bool) -> None:
        super().__init__()
        self.n = n
        self.logits = StreamLogits(n, site.dim, n * (n + 2), std)
        self.scale = nn.Parameter(torch.full((3,), 0.01))
        if identity:
            with torch.no_grad():
                self.logits.bias[2 * n :] = 4 * torch.eye(n).flatten()

    def forward(self, streams: Tensor) -> Weights:
        """(T, B, n, C) -> weights."""
        n = self.n
        scale = torch.cat([s.expand(k) for s, k in zip(self.scale.unbind(), (n, n, n * n), strict=True)])
        gates, mixing = self.logits(streams, scale).split([2 * n, n * n])
        pre, post = gates.sigmoid().unflatten(0, (2, n)).permute(0, 2, 3, 1).unsqueeze(-1).to(streams).unbind()
        mix = sinkhorn(mixing.unflatten(0, (n, n))).permute(2, 3, 0, 1).to(streams)
        return Weights(pre.transpose(-1, -2), 2 * post, mix)


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
            return (weights.to(streams.dtype).permute(1, 2, 0).unsqueeze(-2) @ streams).squeeze(-2)


@register_variant("mhc")
class MHC(StreamsVariant):
    title = "mHC"
    paper = "Xie et al. 2025, mHC: Manifold-Constrained Hyper-Connections"
    year = 2025
    equations = (
        "u = sum_i pre_i X_i",
        "X_j = post_j F(LN(u)) + sum_i res_ji X_i, res doubly stochastic",
        "output LN(sum_j X_j)",
    )
    rewrites = (("close", "learned", "sum_j X_j", "sum_j a_j X_j"),)
    extension = f"{StreamsVariant.extension} The start of the router's matrix and biases, and the sum at the end."
    verified = "DeepSeek-V4's router and read-out in huggingface/transformers, decoder: activations, gradients"

    @dataclass(frozen=True)
    class Config(StreamsVariant.Config):
        close: Literal["sum", "learned"] = option("sum", "the streams at the top; learned: as in DeepSeek-V4")
        router: float = option(
            1.0, "standard deviation of the router's matrix at the start, times (n C)^-0.5", minimum=0.0
        )
        mixing: Literal["uniform", "identity"] = option(
            "uniform", "where the mixing of streams starts; identity: near it"
        )

        def __post_init__(self) -> None:
            if self.router < LEAST_ROUTER and self.n > 1:
                raise UserError(
                    f"option router={self.router:g} of variant 'mhc' would keep its streams alike, since nothing else"
                    f" tells them apart; give a number of at least {LEAST_ROUTER}"
                )

    def __init__(self, config: Any, shape: Shape) -> None:
        super().__init__(config, shape)
        self.read_out = LearnedSum(config.n, shape.dim, config.router) if config.close == "learned" else None

    def connect(self, site: Site) -> Connection:
        router = MHCRouter(site, self.config.n, self.config.router, self.config.mixing == "identity")
        return StreamsConnection(site, self.config.n, router)

    def state(self, s: Stream) -> Tensor:
        return super().state(s) if self.read_out is None else self.read_out(side_by_side(s, self.config.n))
