"""B2T connection without layer norms.

::

    x ─┬─┬─► SA ─► + ─┬─► FFN ─► + ─► ·β ─► + ─► x'
       │ └────────┘   └──────────┘          │
       └─► ·α ─────────────────────────────┘        (a decoder layer has cross-attention in between)

Takase et al. 2023, "B2T Connection: Serving Stability and Performance in Deep Transformers", Eq. 9 to 11:
x' = α x_in + β (x_ffn + FFN(x_ffn)), α = min(L / 12, L^-0.15) with the stack's L layers, β = d^-0.2.
Checked against takase/b2t_connection@c8e2ad4 (``--residual-bottom-to-top --no-layer-norm``); no norm on top either.
As for variant ``b2t``, the later ``init_scale=depth`` is in no table of the paper.

Nothing keeps the stream in bounds, so that gradients overflow at the start of deep and narrow stacks:
``fairseq-residuals gradients --variants b2t_no_ln --layers 30 --dim 16 --ffn-dim 64 --heads 2`` has nan, and has none
with ``--layers 18``, or with ``--layers 100 --dim 64 --ffn-dim 256``.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fairseq_residuals.wirings.core.base import Site, Stream, Variant
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.b2t import B2T, BottomConnection


class B2TNoLNConnection(BottomConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        config = site.config
        self.alpha = min(site.depth / 12, site.depth**-0.15) if config.alpha == "depth" else config.alpha
        self.beta = site.dim**-0.2 if config.beta == "width" else config.beta

    def write(self, s: Stream, y: Tensor) -> Stream:
        x = s["x"] + y
        return s | {"x": self.alpha * s["bottom"] + self.beta * x if self.site.last else x}


@register_variant("b2t_no_ln")
class B2TNoLN(Variant):
    title = "B2T connection without layer norms"
    paper = B2T.paper
    year = B2T.year
    code = B2T.code
    verified = B2T.verified
    connection = B2TNoLNConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        alpha: float | Literal["depth"] = option(
            "depth", "factor on a layer's input; depth: min(L / 12, L^-0.15)", minimum=-LARGEST, maximum=LARGEST
        )
        beta: float | Literal["width"] = option(
            "width", "factor on a layer's output; width: d^-0.2", minimum=-LARGEST, maximum=LARGEST
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "last of a layer: x = alpha x_in + beta (x + F(x))",
            "else: x = x + F(x)",
            o.where("alpha", "min(L / 12, L^-0.15)"),
            o.where("beta", "d^-0.2"),
        )
