"""mHC: Hyper-Connections whose mixing matrices are doubly stochastic, so that no depth amplifies the streams.

::

    X_1..X_n ─┬─► Σ pre_i X_i ─► LN ─► F ─► · post_j ─► + ─► X'_1..X'_n        output: LN(Σ X_j)
              └─► Σ_i res_ji X_i ───────────────────────┘

Xie et al. 2025, Eq. 7 to 9 and 14 to 19. From the root-mean-square norm of all n C numbers of a position, one matrix
makes three groups of logits, each times a learned scale (at first 0.01) plus a learned bias: pre = sigmoid, post = 2
sigmoid, and res = exp, columns and rows normalised in turn 20 times (Sinkhorn and Knopp). Rows then sum to one, columns
nearly. No code was published, nor how the matrix and the biases start, nor how the streams end; ours: N(0, 1 / (n C)),
zero, the sum. ``mixing=identity`` starts the biases of res at 4 I. ``close=learned`` is the read-out of
DeepSeek-V4 (huggingface/transformers 5.23.0, ``deepseek_v4``). GLM-5.3-Flash ends in the mean (``glm5_next``), which
the norm on top does not tell from the sum. Both add 1e-6 to pre and within Sinkhorn's steps. Motif 3 (post without its
2, bounded logits) and openPangu-2.0-Flash (mHC around a sandwich) are not this.

Streams that start alike and are treated alike stay alike but for rounding; only the matrix tells them apart, so it may
not start close to zero. In the first sub-layer they are still alike, and mixing them does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.hyper_mix import sinkhorn
from fairseq_residuals.wirings.variants._streams import ReadOutVariant, StreamLogits, StreamsConnection, Weights

GATES = (
    "pre[i] = sigmoid(scale[0] z[i] + bias[i]) for i = 0..n-1",
    "post[j] = 2 sigmoid(scale[1] z[n+j] + bias[n+j]) for j = 0..n-1",
)
"""The equations of what a sub-layer reads and writes, where it does so as in mHC."""


class MHCRouter(nn.Module):
    """Compute the weights of one sub-layer: pre = sigmoid, post = 2 sigmoid, and a matrix that mixes.

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
        return sinkhorn(logits.unflatten(0, (self.n, self.n))).movedim((0, 1), (-2, -1))

    def forward(self, streams: Tensor) -> Weights:
        """Return weights in single precision at least, of streams (T, B, n, C)."""
        sizes = [size for size in self.sizes if size]
        scale = torch.cat([s.expand(k) for s, k in zip(self.scale.unbind(), sizes, strict=True)])
        gates, mixing = self.logits(streams, scale).split([2 * self.n, self.sizes[2]])
        pre, post = gates.sigmoid().unflatten(0, (2, self.n)).movedim(1, -1).unsqueeze(-1).unbind()
        return Weights(read=pre.mT, write=2 * post, mix=self.mix(mixing))


@register_variant("mhc")
class MHC(ReadOutVariant):
    title = "mHC"
    paper = "Xie et al. 2025, mHC: Manifold-Constrained Hyper-Connections"
    year = 2025
    extension = f"{ReadOutVariant.extension} The start of the router's matrix and biases, and the sum at the end."
    verified = "DeepSeek-V4's router and read-out and GLM-5.3-Flash in transformers, decoder: activations, gradients"
    ships_in = "DeepSeek-V4 (close=learned,norm_type=rms), GLM-5.3-Flash (norm_type=rms,norm_eps=1e-5)"

    @dataclass(frozen=True)
    class Config(ReadOutVariant.Config):
        former = ("router=1",)
        mixing: Literal["uniform", "identity"] = option(
            "uniform", "where the mixing of streams starts; identity: near it", for_training=True
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: X[j] = x for j = 0..n-1",
            "z[o] = dot(weight[o], RMS([X[i] for i = 0..n-1])) for o = 0..n (n + 2) - 1",
            *GATES,
            "r[j,i] = scale[2] z[(2+j) n + i] + bias[(2+j) n + i] for j = 0..n-1, i = 0..n-1",
            "res = sinkhorn(r)",
            "y = F(LN(sum_{i=0..n-1} pre[i] X[i]))",
            "X[j] = post[j] y + sum_{i=0..n-1} res[j,i] X[i] for j = 0..n-1",
            f"output LN({cls.total('X', o)})",
        )

    def connect(self, site: Site) -> Connection:
        n = self.config.n
        logits = StreamLogits(site, n, n * (n + 2), 1.0)
        if self.config.mixing == "identity":
            logits.bias.data[2 * n :] = 4 * torch.eye(n).flatten()
        return StreamsConnection(site, n, MHCRouter(n, logits))
