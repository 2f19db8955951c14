"""Deep Delta Learning: a sub-layer chooses a direction, and the stream's part along it is moved to a learned value.

::

    x ─┬─► LN ─► F ─► u = y / |y| ─► · b (v - u·x) ─► + ─► x'
       └──────────────────────────────────────────────┘

Zhang et al. 2026, "Deep Delta Learning", with one value for a token: x' = x + b (v - u·x) u, where u = y / |y| for
y = F(LN(x)), b = 2 sigmoid(g·LN(x) + c) and v = 4 sigmoid(w·x + e), and a norm on top. Products are over the channels
of one token. b = 0 leaves x as it is, b = 1 sets its part along u to v, and b = 2 reflects it there. g and w start as
N(0, 1 / (4 d)), and c so that b is near ``start``. Checked against yifanzhang-pro/deep-delta-learning@d1f7621
(``DDL-vdim1-gpt-mha-rope-TC.py``).

Each sub-layer moves the stream by about two, whatever its width: in deep stacks of few channels (100 layers of 16)
gradients explode, but for a small ``start``. The authors also have streams of several values, which they read through
convolutions over time. That is not here.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.utils.precision import at_least_fp32
from fairseq_residuals.wirings.variants.pre_ln import TopNorm

LEAST_LENGTH = 1e-5
"""Length whose square is added to that of a sub-layer's output."""


class DeepDeltaConnection(Connection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.new_norm()
        self.gate, self.value = (nn.Parameter(0.5 * site.dim**-0.5 * torch.randn(site.dim)) for _ in range(2))
        self.gate_bias = nn.Parameter(torch.full((1,), site.config.start / 2).logit())
        self.value_bias = nn.Parameter(torch.zeros(1))

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        h = self.norm(s["x"])
        return h, s | {"fed": h}

    def write(self, s: Stream, y: Tensor) -> Stream:
        x, h, exact = (at_least_fp32(t) for t in (s["x"], s["fed"], y))
        u = rms_norm(exact, exact.shape[-1:], eps=LEAST_LENGTH**2 / exact.size(-1)) / exact.size(-1) ** 0.5
        b = 2 * ((self.gate * h).sum(-1, keepdim=True) + self.gate_bias).sigmoid()
        v = 4 * ((self.value * x).sum(-1, keepdim=True) + self.value_bias).sigmoid()
        x = x + b * (v - (u * x).sum(-1, keepdim=True)) * u
        return {key: value for key, value in s.items() if key != "fed"} | {"x": x.to(s["x"].dtype)}


@register_variant("deep_delta")
class DeepDelta(TopNorm):
    title = "Deep Delta Learning"
    paper = "Zhang et al. 2026, Deep Delta Learning"
    year = 2026
    code = "yifanzhang-pro/deep-delta-learning@d1f7621"
    verified = "authors' code, decoder alone: activations, gradients"
    extension = (
        "Published for decoders alone. Cross-attention is one more sub-layer; directions are of what dropout leaves."
    )
    connection = DeepDeltaConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        start: float = option(
            1.0,
            "b before training: 0 leaves the stream, 2 reflects it",
            minimum=0.001,
            maximum=1.999,
            for_training=True,
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "h = LN(x); u = RMS(F(h), 10^-10 / d) / sqrt(d)",
            "b = 2 sigmoid(dot(gate, h) + gate_bias); v = 4 sigmoid(dot(value, x) + value_bias)",
            "x = x + b (v - dot(u, x)) * u",
            "output LN(x)",
        )
