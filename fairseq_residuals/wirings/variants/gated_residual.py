"""Gated residual: n streams, read through a gate for every channel of each, and written through one for each stream.

::

    X_1..X_n ─┬─► LN_i ─► Σ g_i LN_i(X_i) / n ─► F ─► · b_j ─► + ─► X'_1..X'_n        output: a last read
              └────────────────────────────────────────────────┘

With z the norms of all streams side by side: g = sigmoid(W_up silu(W_down z / n)), b = 2 sigmoid(W_inject z / n), and
F reads the mean of g * z as it is, for the norms of the streams are the only ones. The read on top has matrices of its
own, and no norm follows it. Qwen Team 2026, "Qwen3.8-Flash-Next" (a release of weights); checked against
huggingface/transformers@v5.23.0 (``modeling_qwen4_exp.py``), which draws all matrices from N(0, 0.02): ``start=qwen``.
Its norms are RMSNorm (``norm=rms``), and W_down has 320 rows at C = 2048.

By our choice W_up and W_inject start at 0, and the norms' gains at 2: g is then 1/2, b 1, and the wiring starts as
Pre-LN. Price: the streams part by the gradient of W_up alone, which W_down makes; after one update they are still
alike. ``start=qwen`` parts them at once. Weight decay spares the gains.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.depth_mup import SPARED, UpdateScale
from fairseq_residuals.wirings.core.norms import scale_gain
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.utils.precision import at_least_fp32, without_autocast
from fairseq_residuals.wirings.variants._streams import StreamsVariant, stream_keys

STD = 0.02
GATED = "z = [LN[i](X[i]) for i = 0..n-1]; g = sigmoid(up(silu(down(z) / n)))"
MEAN = "sum_{i=0..n-1} part(g, i, n) * part(z, i, n) / n"


class GatedRead(nn.Module):
    def __init__(self, shape: StackShape, config: Any) -> None:
        super().__init__()
        self.n, released, width = config.n, config.start == "qwen", config.n * shape.dim
        self.norms = nn.ModuleList(shape.new_norm() for _ in range(config.n))
        for norm in self.norms:
            scale_gain(norm, 1.0 if released else 2.0)
        self.down = nn.Parameter(STD * torch.randn(config.rank, width))
        self.up = nn.Parameter(STD * released * torch.randn(width, config.rank))

    def forward(self, s: Stream) -> tuple[Tensor, Tensor]:
        """Return what is read, (T, B, C), and the normalized streams in single precision at least, (T, B, n C)."""
        normed = [norm(s[key]) for norm, key in zip(self.norms, stream_keys(self.n), strict=True)]
        z = at_least_fp32(torch.cat(normed, -1))
        with without_autocast(z):
            gates = (silu(z @ at_least_fp32(self.down).T / self.n) @ at_least_fp32(self.up).T).sigmoid()
            return (gates * z).unflatten(-1, (self.n, -1)).mean(-2).to(s["x"].dtype), z


class GatedResidualConnection(Connection):
    """While the sub-layer runs the stream also has "gates" (T, B, n, 1), of what is written."""

    def __init__(self, site: Site, config: Any) -> None:
        super().__init__(site)
        self.gated = GatedRead(site, config)
        std = STD if config.start == "qwen" else 0.0
        self.inject = nn.Parameter(std * torch.randn(config.n, config.n * site.dim))

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        u, z = self.gated(s)
        with without_autocast(z):
            gates = 2 * (z @ at_least_fp32(self.inject).T / self.gated.n).sigmoid()
        return u, s | {"gates": gates.unsqueeze(-1)}

    def write(self, s: Stream, y: Tensor) -> Stream:
        s, keys = dict(s), stream_keys(self.gated.n)
        gates = s.pop("gates").unbind(-2)
        return s | {key: (s[key] + gate * y).to(s[key].dtype) for key, gate in zip(keys, gates, strict=True)}


@register_variant("gated_residual")
class GatedResidual(StreamsVariant):
    title = "Gated residual"
    paper = "Qwen Team 2026, Qwen3.8-Flash-Next (released weights)"
    year = 2026
    starts_as = "pre_ln"
    code = "huggingface/transformers@v5.23.0"
    verified = "Qwen3.8-Flash-Next in transformers, decoder alone: activations, gradients"
    ships_in = "Qwen3.8-Flash-Next (norm_type=rms, rank=320)"
    extension = f"{StreamsVariant.extension} start=pre_ln."

    @dataclass(frozen=True)
    class Config(StreamsVariant.Config):
        rank: int = option(64, "rows of W_down", minimum=1, maximum=65_536)
        start: Literal["pre_ln", "qwen"] = option("pre_ln", "where gains and matrices start", for_training=True)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: X[j] = x for j = 0..n-1",
            f"{GATED}; b = 2 sigmoid(inject(z) / n)",
            f"y = F({MEAN})",
            "X[j] = X[j] + part(b, j, n) * y for j = 0..n-1",
            f"after each layer, l = L: {GATED}",
            f"output {MEAN}",
        )

    @classmethod
    def has_top(cls, o: Any) -> bool:
        return False

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.last = GatedRead(shape, config)

    def connect(self, site: Site) -> Connection:
        return GatedResidualConnection(site, self.config)

    def layer_output(self, s: Stream) -> Tensor:
        return self.last(s)[0]  # type: ignore[no-any-return]

    def update_rules(self) -> dict[str, UpdateScale]:
        return super().update_rules() | {f"norms.{i}.weight": SPARED for i in range(self.config.n)}
