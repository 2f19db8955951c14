"""Hyper-Connections: n residual streams side by side; each sub-layer learns what it reads, writes and mixes.

::

    H_1..H_n ─┬─► Σ a_i H_i ─► LN ─► F ─► · b_j ─► + ─► H'_1..H'_n        output: LN(Σ H_j)
              └─► Σ_i A_ij H_i ─────────────────────┘

Zhu et al. 2024, "Hyper-Connections", Eq. 1 to 14, Algorithms 2 and 3: u = Σ_i a_i H_i, y = F(LN(u)),
H'_j = b_j y + Σ_i A_ij H_i. Each weight is a parameter plus, with ``dynamic``, a small one that each position computes:
(a, A) = (a, A)_static + s tanh(LN(H) W), and b likewise. At the start a is e_(k mod n) in the k-th sub-layer, A the
identity, b all ones and W zero, which makes the stack compute what Pre-LN computes (but with DyT, which sees that the
sum on top is n times as large). No code was published.

The router's norm stays LayerNorm whatever ``norm_type`` says. The paper also scales the deviation of output matrices by
sqrt(n), but does not say in which direction: ``out_scale`` is 1 unless it is given. ``close=learned`` is mHC's as in
DeepSeek-V4, and not of this paper, which decays W and not the static weights; fairseq's ``--weight-decay`` decays both.
By our choice cross-attention has a router too, and each stack streams of its own. Streams that no sub-layer reads at
the start, in stacks of fewer sub-layers than streams, stay alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.ops.rms_linear import rms_linear
from fairseq_residuals.wirings.utils.precision import at_least_fp32
from fairseq_residuals.wirings.variants._streams import ReadOutVariant, StreamsConnection, Weights


class TanhRouter(nn.Module):
    """Compute the weights of one sub-layer, static + s tanh(LN(H) W), of n streams or fractions of one.

    The last column of "static" (n, M), and row of "dynamic" (M, C), is what is written; "scale" is that of the dynamic
    part of the others, and of this one.
    """

    def __init__(self, static: Tensor, width: int, *, dynamic: bool, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.static = nn.Parameter(static)
        self.dynamic = nn.Parameter(torch.zeros(static.size(1), width)) if dynamic else None
        if dynamic:
            self.scale = nn.Parameter(torch.full((2,), 0.01))
            self.gain, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def product(self, streams: Tensor) -> Tensor:
        """Return LN(H) W, (T, B, n, C) -> (T, B, n, M)."""
        assert self.dynamic is not None
        gain, bias, matrix = (at_least_fp32(p) for p in (self.gain, self.bias, self.dynamic))
        return rms_linear(streams, matrix * gain, centred=True, eps=self.eps).movedim(0, -1) + matrix @ bias

    def forward(self, streams: Tensor) -> Any:
        """Return weights in single precision at least, (T, B, n, C) -> (T, B, n, M), or (n, M) if they are static."""
        weights = at_least_fp32(self.static)
        if self.dynamic is None:
            return weights
        others, written = at_least_fp32(self.scale).unbind()
        scale = torch.cat([others.expand(weights.size(1) - 1), written.expand(1)])
        return torch.addcmul(weights, self.product(streams).tanh(), scale)


class HyperRouter(TanhRouter):
    """Compute what is read (column 0), what is mixed into stream j (j), and what is written (n + 1)."""

    def __init__(self, site: Site, n: int, dynamic: bool) -> None:
        first = torch.zeros(n, 1)
        first[(site.layer * site.n_sub + site.index) % n] = 1
        static = torch.cat([first, torch.eye(n), torch.ones(n, 1)], 1)
        super().__init__(static, site.dim, dynamic=dynamic, eps=site.eps(1e-5))

    def forward(self, streams: Tensor) -> Weights:
        """Return weights in single precision at least, of streams (T, B, n, C)."""
        read, mix, write = super().forward(streams).split([1, len(self.static), 1], -1)
        return Weights(read.mT, write, mix.mT)


@register_variant("hyper_connections")
class HyperConnections(ReadOutVariant):
    title = "Hyper-Connections"
    paper = "Zhu et al. 2024, Hyper-Connections"
    year = 2024
    starts_as = "pre_ln"
    verified = (
        "transcription of the paper's Algorithms 2 and 3, and lucidrains' code (the authors published none), decoder:"
        " activations, gradients"
    )

    extension = f"{ReadOutVariant.extension} Output matrices are not scaled unless out_scale says so."

    @dataclass(frozen=True)
    class Config(ReadOutVariant.Config):
        dynamic: bool = option(True, "weights depend on the position's streams; false: on nothing (SHC)")
        out_scale: float = option(
            1.0,
            "factor on the sub-layers' output matrices at the start (the paper's: by sqrt(n))",
            minimum=0.0,
            maximum=LARGEST,
            for_training=True,
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        read = " + scale[0] tanh(dot(dynamic[c], Z[i]))" if o.dynamic else ""
        written = " + scale[1] tanh(dot(dynamic[n+1], Z[j]))" if o.dynamic else ""
        return (
            "start: H[j] = x for j = 0..n-1",
            "Z[i] = gain * standardize(H[i]) + bias for i = 0..n-1" if o.dynamic else "",
            f"W[i,c] = static[i,c]{read} for i = 0..n-1, c = 0..n",
            f"w[j] = static[j,n+1]{written} for j = 0..n-1",
            "y = F(LN(sum_{i=0..n-1} W[i,0] H[i]))",
            "H[j] = w[j] y + sum_{i=0..n-1} W[i,j+1] H[i] for j = 0..n-1",
            f"output LN({cls.total('H', o)})",
        )

    def connect(self, site: Site) -> Connection:
        n = self.config.n
        return StreamsConnection(site, n, HyperRouter(site, n, self.config.dynamic))

    def init_weights(self, layers: nn.ModuleList, embed_tokens: nn.Module | None) -> None:
        for name, module in layers.named_modules():
            if isinstance(module, nn.Linear) and name.endswith(("out_proj", "fc2")):
                module.weight.mul_(self.config.out_scale)
