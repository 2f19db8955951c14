"""Post-LN: the Transformer as it was published.

::

    x ─┬─► F ─► + ─► LN ─► x'
       └────────┘

Vaswani et al. 2017, section 3.1: LayerNorm(x + Sublayer(x)); no norm on top of a stack. Checked against
facebookresearch/fairseq@3d262bb (``modules/transformer_layer.py``, ``normalize_before=False``).
"""

from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Summation, Variant
from fairseq_residuals.wirings.core.registry import register_variant


class PostLNConnection(Connection):
    summation: Summation = "post"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.new_norm()

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": self.norm(s["x"] + y)}


@register_variant("post_ln")
class PostLN(Variant):
    title = "Post-LN"
    paper = "Vaswani et al. 2017, Attention Is All You Need"
    year = 2017
    code = "facebookresearch/fairseq@3d262bb"
    verified = "authors' code, fairseq 0.5 to 0.12: activations, gradients, generation, initialisation"
    ships_in = "BERT, RoBERTa, BART, XLM-R"
    export_as = "post_ln"
    connection = PostLNConnection
    summation = "post"

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (f"x = LN({o.residual} + F(x))",)
