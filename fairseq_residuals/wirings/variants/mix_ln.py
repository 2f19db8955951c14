"""Mix-LN: the first quarter of the layers is Post-LN, the others are Pre-LN.

::

    layers 1 .. floor(alpha L):  x ─┬─► F ─► + ─► LN ─► x'       the others:  x ─┬─► LN ─► F ─► + ─► x'
                                    └────────┘                                   └──────────────┘

Li et al. 2024, "Mix-LN: Unleashing the Power of Deeper Layers by Combining Pre-LN and Post-LN". Nothing joins the two,
and the norm on top stays. Checked against pixeli99/MixLN@ff45826 (``modeling_llama.py``, ``NORM_TYPE=post_pre``).

In 12 layers it is the list ``post_ln:0-2,pre_ln:3-11``. By our choice each stack has its own quarter, and
cross-attention is as its layer is.
"""

import math
from dataclasses import dataclass
from typing import Any

from fairseq_residuals.wirings.core.base import Connection, Site
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.post_ln import PostLNConnection
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


@register_variant("mix_ln")
class MixLN(OptionalTopNorm):
    title = "Mix-LN"
    paper = "Li et al. 2024, Mix-LN: Unleashing the Power of Deeper Layers by Combining Pre-LN and Post-LN"
    year = 2024
    code = "pixeli99/MixLN@ff45826"
    verified = "authors' code, decoder alone: activations, gradients; cross-attention: none"
    extension = "alpha is a part of each stack's own layers; cross-attention is as its layer is."
    summation = "mixed"

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        alpha: float = option(0.25, "part of the layers that is Post-LN", minimum=0.0, maximum=1.0)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        post = f"l <= floor(alpha L): x = LN({o.residual} + F(x))"
        return post, f"else: {o.adds('F(LN(x))')}", *cls.top(o)

    def connect(self, site: Site) -> Connection:
        # 0.29 of 100 layers are 28.999999999999996 in floating point
        post = math.floor(self.config.alpha * site.depth + 1e-6)
        return PostLNConnection(site) if site.layer < post else PreLNConnection(site)
