"""Layer scalar: a sandwich whose stream is multiplied by one number at the end of each layer, skip included.

::

    x ─┬─► LN ─► F ─► LN ─► + ─► ... ─► · s ─► x'      once per layer, after its last sub-layer
       └────────────────────┘

x' = x + LN(F(LN(x))) as in ``sandwich_ln``, and after the last sub-layer of layer l: x' = s_l x'. Google 2026,
"Gemma 4" (a release of weights). Checked against huggingface/transformers@v5.23.0 (``modeling_gemma4.py``).

In that port s_l is a buffer of ones, which the checkpoints fill: how it was trained is not public. By our choice it is
a parameter that starts at 1, and so the wiring as ``sandwich_ln``; each stack has its own, and weight decay spares it.
Since whatever reads the stream normalises it, s_l only weighs what is old against what comes: the output of layer i
counts prod s_j over j >= i in the final sum.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.sandwich_ln import SandwichConnection, SandwichLN


class LayerScalarConnection(SandwichConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scalar = nn.Parameter(torch.ones(1)) if site.last else None

    def write(self, s: Stream, y: Tensor) -> Stream:
        s = super().write(s, y)
        return s if self.scalar is None else s | {"x": self.scalar * s["x"]}


@register_variant("layer_scalar")
class LayerScalar(SandwichLN):
    title = "Layer scalar"
    paper = "Google 2026, Gemma 4 (released weights)"
    year = 2026
    starts_as = "sandwich_ln"
    code = "huggingface/transformers@v5.23.0"
    verified = "Gemma 4 in transformers, decoder alone: activations, gradients"
    ships_in = "Gemma 4, also unified, DiffusionGemma, EmbeddingGemma 2 (norm_type=rms)"
    extension = "The scalar is learned and starts at 1; each stack has its own, after the last sub-layer of a layer."
    connection = LayerScalarConnection
    spares = ("scalar",)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            o.adds(cls.branch(o), gated=False),
            "last of a layer: x = scalar x",
            f"x = {o.gated}" if o.gpas != "none" else "",
            *cls.top(o),
        )
