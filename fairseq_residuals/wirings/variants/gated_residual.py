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

from fairseq_residuals.wirings.core.base import Site, StackShape, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.utils.precision import at_least_fp32
from fairseq_residuals.wirings.variants._streams import StreamsConnection, StreamsVariant, stack_streams

READ = "z = [LN[i](X[i]) / n for i = 0..n-1]; g = sigmoid(up(silu(down(z)))); u = sum_{i=0..n-1} part(g * z, i, n)"


class GatedRead(torch.nn.Module):
    def __init__(self, shape: StackShape, config: Any) -> None:
        super().__init__()
        self.std, width = 0.02 if config.start == "qwen" else 0.0, config.n * shape.dim
        self.norms = torch.nn.ModuleList(shape.new_norm(gain=1.0 if self.std else 2.0) for _ in range(config.n))
        self.down = torch.nn.Parameter(0.02 * torch.randn(config.rank, width))
        self.up = torch.nn.Parameter(self.std * torch.randn(width, config.rank))

    def forward(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is read of (T, B, n, C), (T, B, C), and z / n in single precision at least, (T, B, n C)."""
        normed = torch.cat([norm(x) for norm, x in zip(self.norms, streams.unbind(-2), strict=True)], -1)
        z = at_least_fp32(normed) / len(self.norms)
        gates = (torch.nn.functional.silu(z @ at_least_fp32(self.down).T) @ at_least_fp32(self.up).T).sigmoid()
        return (gates * z).unflatten(-1, (len(self.norms), -1)).sum(-2).to(streams.dtype), z


class GatedResidualConnection(StreamsConnection):
    def __init__(self, site: Site) -> None:
        config = site.config
        super().__init__(site, config.n)
        self.gated = GatedRead(site, config)
        self.inject = torch.nn.Parameter(self.gated.std * torch.randn(config.n, config.n * site.dim))

    def route(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        u, z = self.gated(streams)
        return u, streams, 2 * (z @ at_least_fp32(self.inject).T).sigmoid().unsqueeze(-1)


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
    spares = tuple(f"norms.{i}.weight" for i in range(64))
    connection = GatedResidualConnection

    @dataclass(frozen=True)
    class Config(StreamsVariant.Config):
        rank: int = option(64, "rows of W_down", minimum=1, maximum=65_536)
        start: Literal["pre_ln", "qwen"] = option("pre_ln", "where gains and matrices start", for_training=True)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: X[j] = x for j = 0..n-1",
            f"{READ}; y = F(u)",
            "b = 2 sigmoid(inject(z)); X[j] = X[j] + part(b, j, n) * y for j = 0..n-1",
            f"after each layer, l = L: {READ}",
            "output u",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.last, self.norm = GatedRead(shape, config), None

    def layer_output(self, s: Stream) -> torch.Tensor:
        return self.last(stack_streams(s, self.config.n))[0]  # type: ignore[no-any-return]
