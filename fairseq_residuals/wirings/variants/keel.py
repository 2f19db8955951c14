"""KEEL: Post-LN with the residual weighted by the number of sub-layers, and a norm at the start of each branch.

::

    x ─┬─► LN ─► F ─► + ─► LN ─► x'        first layer: without α; its attention also without the norm after the sum
       └─► · α ───────┘

Chen and Wei 2026, section 3: x' = LN(α x + F(LN(x))), with α the number of sub-layers (attention and FFN). In the first
layer α is 1, and its attention has no norm after the sum: x' = x + F(LN(x)). There is no norm on top of a stack: that
of the last sub-layer is on the stream. No code was published. The paper's norms are RMSNorm without bias
(``norm=rms``). By our choice each stack has its own α and first layer, and cross-attention counts as a sub-layer.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Summation, Variant
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.registry import register_variant


class KEELConnection(Connection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        alpha = site.depth * site.n_sub if site.config.alpha == "sublayers" else site.config.alpha
        self.alpha = float(alpha) if site.layer > 0 else 1.0
        self.branch_norm = site.new_norm()
        self.norm = site.new_norm() if site.layer > 0 or not site.first else None
        self.summation: Summation = "pre" if self.norm is None else "post"

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.branch_norm(s["x"]), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        x = self.alpha * s["x"] + y
        return s | {"x": x if self.norm is None else self.norm(x)}


@register_variant("keel")
class KEEL(Variant):
    title = "KEEL"
    paper = "Chen and Wei 2026, Post-LayerNorm Is Back: Stable, ExpressivE, and Deep"
    year = 2026
    verified = "the paper's equations; no code was published"
    extension = (
        "Each stack has its own alpha (2N in an encoder, 3M in a decoder with cross-attention) and its own first layer,"
        " in which cross-attention is as the FFN."
    )
    connection = KEELConnection
    summation = "mixed"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        former = ("branch_bias=true",)
        alpha: Literal["sublayers"] | float = option(
            "sublayers", "factor on the residual; sublayers: how many the stack has", minimum=0.0, maximum=LARGEST
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            f"k = 1: {o.adds('F(LN_branch(x))')}",
            f"else l = 1: x = LN({o.residual} + F(LN_branch(x)))",
            f"else: x = LN(alpha {o.residual} + F(LN_branch(x)))",
            o.where("alpha", "K"),
        )
