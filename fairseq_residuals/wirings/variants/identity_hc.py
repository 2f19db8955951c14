"""Identity-HC: mHC without mixing; streams differ by what is written to them alone.

::

    X_1..X_n ─┬─► Σ pre_i X_i ─► LN ─► F ─► · post_j ─► + ─► X'_1..X'_n        output: LN(mean X_j)
              └─────────────────────────────────────────┘

mHC with H_res = I (:mod:`.mhc`). Tencent 2026, "Hy4-preview" (a release of weights, whose iHC has no paper), is
``start=hy4,close=learned``, checked against huggingface/transformers@v5.23.0 (``modeling_hy_v4.py``): the router's
matrix N(0, 0.006), which alone tells the streams apart, pre 1/n, post 1, and a read-out at the top as in DeepSeek-V4
that starts as the mean. There 1e-6 is added to pre and post, and here to the read-out alone.

The other start is our choice, after the streamwise wide residual of NVIDIA's Megatron-LM as described in its pull
request 6716: the matrix is 0, pre is 1/n, and post = 2 sigmoid(b) with b spread evenly over ±1, whose mean is 1. So the
mean of the streams is at first Pre-LN's stream, while the streams differ: without mixing, streams that start alike and
are treated alike would stay alike.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants._streams import ReadOutVariant, StreamLogits, StreamsConnection, stack_streams
from fairseq_residuals.wirings.variants.mhc import GATES, MHCRouter


class IdentityRouter(MHCRouter):
    def __init__(self, site: Site, n: int, spread: float, std: float) -> None:
        super().__init__(n, StreamLogits(site, n, 2 * n, std))
        # of a single stream, which the norm rescales, nearly 1
        read = torch.full((n,), 1 / n).logit(eps=1e-3)
        write = spread * (2 * torch.arange(n) - (n - 1)) / max(n - 1, 1)
        self.logits.bias.data.copy_(torch.cat([read, write]))

    def mix(self, logits: Tensor) -> Tensor:
        return torch.eye(self.n, dtype=logits.dtype, device=logits.device)


@register_variant("identity_hc")
class IdentityHC(ReadOutVariant):
    title = "Identity-HC"
    paper = "Tencent 2026, Hy4-preview (released weights)"
    year = 2026
    starts_as = "pre_ln"
    code = "huggingface/transformers@v5.23.0"
    verified = "Hy4-preview in transformers (start=hy4,close=learned), decoder alone: activations, gradients"
    ships_in = "Hy4-preview (start=hy4,close=learned,norm_type=rms,norm_eps=1e-5)"
    extension = f"{ReadOutVariant.extension} start=spread, that of Megatron-LM's #6716, and close=mean."

    @dataclass(frozen=True)
    class Config(ReadOutVariant.Config):
        former = ("spread=1",)
        start: Literal["spread", "hy4"] = option(
            "spread", "what tells streams apart; hy4: the router's matrix alone", for_training=True
        )
        close: Literal["mean", "learned"] = option(  # type: ignore[assignment]
            "mean", "the streams at the top; learned: as in Hy4 and DeepSeek-V4"
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: X[j] = x for j = 0..n-1",
            "z[o] = dot(weight[o], RMS([X[i] for i = 0..n-1])) for o = 0..2 n - 1",
            *GATES,
            "y = F(LN(sum_{i=0..n-1} pre[i] X[i]))",
            "X[j] = X[j] + post[j] y for j = 0..n-1",
            f"output LN({cls.total('X', o)})" if o.close == "learned" else "output LN(sum_{j=0..n-1} X[j] / n)",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        std = 0.006 * (config.n * shape.dim) ** 0.5 if config.start == "hy4" else 0.0
        super().__init__(config, shape, std)
        self.std = std
        if self.read_out is not None:
            self.read_out.logits.bias.data.fill_(-math.log(max(config.n - 1, 1)))

    def connect(self, site: Site) -> Connection:
        n, spread = self.config.n, 0.0 if self.config.start == "hy4" else 1.0
        return StreamsConnection(site, n, IdentityRouter(site, n, spread, self.std))

    def layer_output(self, s: Stream) -> Tensor:
        return stack_streams(s, self.config.n).mean(-2) if self.read_out is None else super().layer_output(s)
