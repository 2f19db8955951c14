"""ZAYA1's residual scaling: Pre-LN, in which the stream and the branch are each shifted and scaled before they meet.

::

    x ─┬─► LN ─► F ─► (· + b1) s1 ─► + ─► x'
       └────────── (· + b2) s2 ──────┘

x' = s1 (F(LN(x)) + b1) + s2 (x + b2), four vectors for each sub-layer, which start at 1 and 0; the embeddings are
shifted and scaled too, and a norm is on top. It starts as Pre-LN. Zyphra 2025, "ZAYA1-8B" (a release of weights).
Checked against huggingface/transformers@v5.23.0 (``modeling_zaya.py``), which keeps the stream in single precision.

The bias is added before the scale. By our choice cross-attention is one more sub-layer with vectors of its own.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, StackShape, Stream
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class Affine(nn.Module):
    """(x + bias) * scale, per channel; starts as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) -> (..., C)"""
        return (x + self.bias) * self.scale


class ZayaConnection(PreLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.of_branch, self.of_stream = Affine(site.dim), Affine(site.dim)

    def write(self, s: Stream, y: Tensor) -> Stream:
        return super().write(s | {"x": self.of_stream(s["x"])}, self.of_branch(y))


@register_variant("zaya_residual")
class ZayaResidual(OptionalTopNorm):
    title = "ZAYA1's residual scaling"
    paper = "Zyphra 2025, ZAYA1-8B (released weights)"
    year = 2025
    symbols: ClassVar[dict[str, str]] = {
        f"{short}_{i}": f"{owner}.{name}"
        for i, owner in enumerate(("of_embedding", "of_branch", "of_stream"))
        for short, name in (("s", "scale"), ("b", "bias"))
    }
    starts_as = "pre_ln"
    code = "huggingface/transformers@v5.23.0"
    verified = "ZAYA1 in transformers, decoder alone: activations, gradients"
    ships_in = "ZAYA1-8B (norm_type=rms), Doge (of_stream.scale alone)"
    extension = "Cross-attention is one more sub-layer with vectors of its own."
    connection = ZayaConnection

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        added = o.adds("y")
        return "start: x = (x + b_0) s_0", f"y = (F(LN(x)) + b_1) s_1; x = (x + b_2) s_2; {added}", *cls.top(o)

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.of_embedding = Affine(shape.dim)

    def open(self, x: Tensor) -> Stream:
        return {"x": self.of_embedding(x)}
