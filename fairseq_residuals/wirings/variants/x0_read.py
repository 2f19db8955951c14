"""x0 in the read: self-attention reads the embedding mixed into the stream, and the stream stays as it is.

::

    x0 ─► · s ─┐
    x ──► · r ─┴─► LN ─► SA ─► · m ─► + ─► x'      FFN and cross-attention: x' = x + m F(LN(x))
    x ────────────────────────────────┘

x' = x + m SA(LN(r x + s x0)), x0 what enters the first layer, r = 1 and s = 0 of each layer at first: it starts as
:mod:`.residual_multiplier`, whose m it has. H Company 2026, "NeoMME-260M" (a release of weights): m = (2 L)^-0.5,
which is ``multiplier=depth,scale_depth=0.7071``, RMSNorms without gains, and an embedding that passes one. Checked
against huggingface/transformers@v5.23.0 (``modeling_neomme.py``). :mod:`.x0_lambdas` changes the stream itself.

In the first layer x is x0, and only r + s matters. By our choice each stack has the embedding of its own, and
cross-attention reads the stream alone. Weight decay spares r and s.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection
from fairseq_residuals.wirings.variants.residual_multiplier import ResidualMultiplier


class X0ReadConnection(PreLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.lambdas = nn.Parameter(torch.tensor([1.0, 0.0])) if site.kind == "self" else None

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        if self.lambdas is None:
            return super().read(s)
        return self.norm(self.lambdas[0] * s["x"] + self.lambdas[1] * s["x0"]), s


@register_variant("x0_read")
class X0Read(ResidualMultiplier):
    """Stream: "x0" (T, B, C), the embedding."""

    title = "x0 in the read"
    paper = "H Company 2026, NeoMME-260M (released weights)"
    year = 2026
    starts_as = "residual_multiplier"
    code = "huggingface/transformers@v5.23.0"
    verified = "NeoMME in transformers, as a decoder: activations, gradients"
    ships_in = "NeoMME-260M (norm_type=rms,multiplier=depth,scale_depth=0.7071)"
    extension = "Each stack has the embedding of its own; cross-attention reads the stream alone."
    spares = ("lambdas",)
    connection = X0ReadConnection

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: x0 = x",
            f"SA: {o.adds('multiplier F(LN(lambdas[0] x + lambdas[1] x0))')}",
            f"else: {o.adds('multiplier F(LN(x))')}",
            o.where("multiplier", "scale_depth / sqrt(L)"),
            *cls.top(o),
        )

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "x0": x}
