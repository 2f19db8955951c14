"""Residual multiplier: Pre-LN, in which each branch is multiplied by one constant.

::

    x ─┬─► LN ─► F ─► · m ─► + ─► x'
       └─────────────────────┘

x' = x + m F(LN(x)), and a norm on top of the stack; m is no parameter. Team IBM 2024, "Granite 3.0 Language Models":
m = 0.22 in the released models. Hu et al. 2024, "MiniCPM: Unveiling the Potential of Small Language Models with
Scalable Training Strategies": m = c / sqrt(L), c = 1.4, L the layers (``multiplier=depth``; Granite's m is the same
rule at 40 layers). Checked against huggingface/transformers@v5.23.0 (``modeling_granite.py``).

The models also scale embeddings (12), attention scores and logits, which is not this wiring. By our choice L of
``multiplier=depth`` is each stack's own, and cross-attention has the same m.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fairseq_residuals.wirings.core.base import Connection, Site
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm


@register_variant("residual_multiplier")
class ResidualMultiplier(OptionalTopNorm):
    title = "Residual multiplier"
    paper = "Hu et al. 2024, MiniCPM: Unveiling the Potential of Small Language Models"
    year = 2024
    code = "huggingface/transformers@v5.23.0"
    verified = "Granite, ESM C in transformers, as decoders: activations, gradients"
    ships_in = (
        "Granite 3 and 4, also hybrid, Granite-swash, granite-docling (norm_type=rms); MiniCPM (multiplier=depth); ESM"
        " C (multiplier=(36/L)^0.5)"
    )
    extension = "With multiplier=depth each stack counts its own layers; cross-attention has the same m."
    export_as = "pre_ln"

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        multiplier: Literal["depth"] | float = option(
            0.22, "m; depth: scale_depth / sqrt(L)", minimum=0.0, maximum=LARGEST
        )
        scale_depth: float = option(
            1.4, "c of multiplier=depth", minimum=0.0, maximum=LARGEST, only_with="multiplier=depth"
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return o.adds("multiplier F(LN(x))"), o.where("multiplier", "scale_depth / sqrt(L)"), *cls.top(o)

    def connect(self, site: Site) -> Connection:
        connection, o = super().connect(site), self.config
        connection.multiplier = o.scale_depth * site.depth**-0.5 if o.multiplier == "depth" else o.multiplier
        return connection
