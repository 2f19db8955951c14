"""nGPT: the stream stays on a sphere, and each sub-layer turns it a learned part of the way to its output.

::

    x ─┬─► F ─► RMS ─► · b ──────► + ─► RMS ─► x'
       └────────────── · (1 - b) ──┘

Loshchilov et al. 2024, "nGPT: Normalized Transformer with Representation Learning on the Hypersphere", section 2.6:
x' = N(x + b (N(F(x)) - x)), b = alpha sqrt(d) abs(rate) by channel. Queries and keys are normalised per head, and both
multiplied by sqrt(d) times one gain, here the queries by its square. Rates and gains start at 1/sqrt(d), so that b is
alpha and nothing else is scaled: Adam then moves them as fast as matrices. Weight decay spares them. Checked against
NVIDIA/ngpt@8b9fa27 (``model.py``); Dory's layers are the same (huggingface/transformers 5.24.0, ``dory``).

The authors' N makes vectors of norm 1, ours of root mean square 1, sqrt(d) times as long; their factor sqrt(d) on the
inside of the FFN comes of it. The embeddings are normalised where they enter: theirs are of norm 1 already.

The authors also normalise the rows of matrices after each update, in place of weight decay and warm-up. They multiply
logits and channels inside the FFN by gains, and queries and keys above rotary positions, here below. This is no part of
the wiring. The lengths of attention's matrices have no effect anyway, since norms follow them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.utils.precision import at_least_fp32
from fairseq_residuals.wirings.variants.hybrid_norm import edit_heads

SPHERE_EPS = 1e-12
"""Number that norms add to a mean square, whatever ``norm_eps`` says: the authors' have none."""


def on_the_sphere(x: Tensor) -> Tensor:
    """Divide x (..., C) by its root mean square, which is computed in single precision at least."""
    return rms_norm(at_least_fp32(x), x.shape[-1:], eps=SPHERE_EPS).to(x.dtype)


class NGPTConnection(Connection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        start = site.dim**-0.5
        self.scale = site.config.alpha / start
        self.rate = nn.Parameter(torch.full((site.dim,), start))
        attends = site.kind != "ffn"
        self.query_gain = nn.Parameter(torch.full((site.heads, site.head_dim), start)) if attends else None

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        norms = {"edit_query": self.query_norm, "edit_key": on_the_sphere}
        edits = {name: partial(edit_heads, norm, self.site.head_dim, kwargs.get(name)) for name, norm in norms.items()}
        return super().attend(attn, query, key, value, s, **kwargs | edits)

    def query_norm(self, heads: Tensor) -> Tensor:
        """(positions, B, H, channels of a head) -> the same"""
        assert self.query_gain is not None
        gain = self.site.dim * at_least_fp32(self.query_gain).square()
        return (gain * on_the_sphere(at_least_fp32(heads))).to(heads.dtype)

    def outer(self, y: Tensor) -> Tensor:
        return on_the_sphere(y)

    def write(self, s: Stream, y: Tensor) -> Stream:
        b = self.scale * at_least_fp32(self.rate).abs()
        x = torch.lerp(at_least_fp32(s["x"]), at_least_fp32(y), b)
        return s | {"x": on_the_sphere(x).to(s["x"].dtype)}


@register_variant("ngpt")
class NGPT(Variant):
    title = "nGPT"
    paper = "Loshchilov et al. 2024, nGPT: Normalized Transformer with Representation Learning on the Hypersphere"
    year = 2024
    code = "NVIDIA/ngpt@8b9fa27"
    verified = "authors' code without rotary positions, decoder: activations, gradients"
    ships_in = "Nemotron-Labs-Dory 1.0"
    extension = (
        "Published for decoders alone. Cross-attention is one more sub-layer, with a gain of its queries and keys; the"
        " embeddings are normalised. Matrices are not, after updates."
    )
    spares = ("rate", "query_gain")
    connection = NGPTConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        alpha: float = option(0.05, "part of the way that the stream takes at the start", minimum=0.0, maximum=1.0)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        edits = "q = d query_gain^2 * RMS(q, 10^-12) per head, k = RMS(k, 10^-12) per head"
        return (
            "start: x = RMS(x, 10^-12)",
            f"attention: y = RMS(F'(x), 10^-12) with {edits}",
            "FFN: y = RMS(F'(x), 10^-12)",
            "x = RMS(x + alpha sqrt(d) abs(rate) * (drop(y) - x), 10^-12)",
        )

    def open(self, x: Tensor) -> Stream:
        return {"x": on_the_sphere(x)}
