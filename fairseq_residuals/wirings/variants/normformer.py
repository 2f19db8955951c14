"""NormFormer: Pre-LN with a norm after attention, one inside the FFN, a gain per head, and one per residual channel.

::

    x ─┬─► LN ─► SA ─► ·γ_head ─► LN ─► + ─┬─► LN ─► fc1 ─► act ─► LN ─► fc2 ─► + ─► x'
       └───────────────────────────────────┘└────────────────► ·λ ─────────────┘

Shleifer et al. 2021, "NormFormer: Improved Transformer Pretraining with Extra Normalization", Eq. 2 to 4.
Checked against facebookresearch/fairseq@3d262bb (``modules/transformer_layer.py``, decoder layers).

Paper and code: the paper scales the heads before the output projection (``heads=before_projection``), the code the
chunks of its output (``heads=after_projection``; its author found no difference). Published for decoder-only models:
that encoder layers and cross-attention get the same is this plugin's extension (``cross`` for the latter). λ is
``scale_resids``, off for the larger published models.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class NormFormerConnection(PreLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        config = site.config
        attention = site.kind == "self" or (site.kind == "cross" and config.cross)
        ffn = site.kind == "ffn"
        self.before = config.heads == "before_projection"
        self.head_gain = nn.Parameter(torch.ones(site.heads)) if attention and config.scale_heads else None
        self.attn_norm = site.new_norm() if attention and config.scale_attn else None
        self.inner_norm = site.new_norm(site.ffn_dim) if ffn and config.scale_fc else None
        self.residual_gain = nn.Parameter(torch.ones(site.dim)) if ffn and config.scale_resids else None

    def scale_heads(self, x: Tensor) -> Tensor:
        assert self.head_gain is not None
        return (x.unflatten(-1, (self.site.heads, -1)) * self.head_gain[:, None]).flatten(-2)

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        if self.head_gain is not None and self.before:
            y, weights, s = super().attend(attn, query, key, value, s, edit_heads=self.scale_heads, **kwargs)
        else:
            y, weights, s = super().attend(attn, query, key, value, s, **kwargs)
            y = y if self.head_gain is None else self.scale_heads(y)
        return y if self.attn_norm is None else self.attn_norm(y), weights, s

    def inner(self, h: Tensor) -> Tensor:
        return h if self.inner_norm is None else self.inner_norm(h)

    def write(self, s: Stream, y: Tensor) -> Stream:
        return super().write(s if self.residual_gain is None else s | {"x": self.residual_gain * s["x"]}, y)


@register_variant("normformer")
class NormFormer(OptionalTopNorm):
    title = "NormFormer"
    paper = "Shleifer et al. 2021, NormFormer: Improved Transformer Pretraining with Extra Normalization"
    year = 2021
    code = "facebookresearch/fairseq@3d262bb"
    verified = (
        "authors' code, decoder: activations, gradients, generation, initialisation; encoder and cross-attention: none"
    )
    extension = "Encoder layers have the same norms and gains, and so has cross-attention (cross)."
    connection = NormFormerConnection

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        scale_attn: bool = option(True, "norm after attention")
        scale_fc: bool = option(True, "norm inside the FFN")
        scale_heads: bool = option(True, "a learned gain per head")
        scale_resids: bool = option(False, "a learned gain per channel on the FFN's residual")
        heads: Literal["after_projection", "before_projection"] = option(
            "after_projection", "where the heads' gains are: code or paper"
        )
        cross: bool = option(True, "cross-attention too (this plugin's extension)")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        before = o.scale_heads and o.heads == "before_projection"
        scaled = "; y = per_head(head_gain) * y" if o.scale_heads and not before else ""
        added = o.adds(f"drop({'LN_attn(y)' if o.scale_attn else 'y'})")
        heads = f"y = F'(LN(x)){' with o = per_head(head_gain) * o' if before else scaled}"
        residual, edits = "residual_gain * x" if o.scale_resids else "x", " with a = LN_inner(a)" if o.scale_fc else ""
        return (
            "" if o.cross else f"CA: {o.adds('F(LN(x))')}",
            f"{'attention' if o.cross else 'SA'}: {heads}; {added}",
            f"FFN: {o.adds('F(LN(x))', to=residual, edits=edits)}",
            *cls.top(o),
        )
