"""Residual gate: stream and branch meet by learned shares of each channel whose squares add up to one.

::

    x ─┬─► LN ─► F ─► RMS ─► · b ─► + ─► x'      b = sigmoid(g / 0.3), a = sqrt(1 - b^2)
       └────────────── · a ─────────┘

x' = a * x + b * RMS(F(LN(x))), and a norm on top; the embeddings are normalized too. RMS has no gain, and an eps of
1e-8 whatever ``norm_eps`` says; around the FFN its input is first multiplied by a gain. a^2 is at least 0.001. Meta
2026, "Muse-Spark-Open-816B-A42B" (a release of weights, whose LN is RMSNorm: ``norm=rms``). Checked against
huggingface/transformers@v5.23.0 (``modeling_muse_spark.py``).

A stream of variance 1 keeps it where the branch does not correlate. ``start=muse`` draws g from N(0, 0.02) as released:
b is 1/2, and of what was written K sub-layers below 0.87^K is left. ``start=beam``, ours, makes b of the k-th term
1/sqrt(k), the constants of ``beam_residual``: with RMSNorms, ``peri_ln``'s function. Weight decay spares g.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from fairseq_residuals.wirings.core.base import Site, Stream, Summation, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.layer import CONNECTIONS
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.utils.precision import at_least_fp32
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection, TopNorm

TEMPERATURE, FLOOR, OUTER_EPS, EMBEDDING_EPS = 0.3, 1e-3, 1e-8, 1e-6


class ResidualGateConnection(PreLNConnection):
    summation: Summation = "none"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.out_gain = nn.Parameter(torch.ones(site.dim)) if site.kind == "ffn" else None
        share = torch.tensor((site.layer * site.n_sub + site.index + 2) ** -0.5)
        drawn = site.config.start == "muse"
        self.gate = nn.Parameter(
            0.02 * torch.randn(site.dim) if drawn else (TEMPERATURE * share.logit()).repeat(site.dim)
        )

    def outer(self, y: Tensor) -> Tensor:
        scaled = at_least_fp32(y if self.out_gain is None else y * self.out_gain)
        return rms_norm(scaled, scaled.shape[-1:], eps=OUTER_EPS).to(y.dtype)

    def write(self, s: Stream, y: Tensor) -> Stream:
        b = (at_least_fp32(self.gate) / TEMPERATURE).sigmoid()
        a = ((1 - b) * (1 + b)).clamp(min=FLOOR).sqrt()
        return s | {"x": (a * s["x"] + b * y).to(s["x"].dtype)}


@register_variant("residual_gate")
class ResidualGate(TopNorm):
    title = "Residual gate"
    paper = "Meta 2026, Muse-Spark-Open-816B-A42B (released weights)"
    year = 2026
    code = "huggingface/transformers@v5.23.0"
    verified = "Muse Spark in transformers, decoder alone: activations, gradients"
    ships_in = "Muse-Spark-Open-816B-A42B (norm_type=rms,norm_eps=1e-5)"
    extension = "start=beam. Cross-attention is one more sub-layer, whose branch is normalized without a gain."
    spares = tuple(f"{connection}{n}.gate" for connection in CONNECTIONS.values() for n in ("", *range(2, 64)))
    connection = ResidualGateConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        start: Literal["beam", "muse"] = option("beam", "where the gates start", for_training=True)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: x = RMS(x)",
            "FFN: y = drop(RMS(out_gain * F'(LN(x)), 10^-8))",
            "else: y = drop(RMS(F'(LN(x)), 10^-8))",
            "b = sigmoid(gate / 0.3); x = sqrt(max((1 - b) (1 + b), 0.001)) * x + b * y",
            "output LN(x)",
        )

    def open(self, x: Tensor) -> Stream:
        return {"x": rms_norm(at_least_fp32(x), x.shape[-1:], eps=self.shape.eps(EMBEDDING_EPS)).to(x.dtype)}
