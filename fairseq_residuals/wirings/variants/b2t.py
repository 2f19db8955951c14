"""B2T connection: Post-LN, and one more residual from the bottom of each layer to just before its last norm.

::

    x ─┬─┬─► SA ─► + ─► LN ─┬─► FFN ─► + ─► LN ─► x'
       │ └─────────┘        └──────────┤
       └───────────────────────────────┘          (a decoder layer has cross-attention in between)

Takase et al. 2023, Eq. 5: x' = LN(x_in + x_ffn + FFN(x_ffn)), where x_in is the layer's input and x_ffn what its FFN is
fed. Checked against takase/b2t_connection@c8e2ad4 (``fairseq/modules/transformer_layer.py``).

Paper and code: the repository's first release (c3dedea, June 2022) initialises as fairseq does; since 4d80167 (May
2023) it multiplies every weight matrix of a layer, biases not, by L^-0.5 (``init_scale=depth``), which no table of
the paper mentions. Table 2 (100L-100L) multiplied by 0.1 (``init_scale=0.1``), which equals L^-0.5 there. By the
paper's words this was all parameters but embeddings, so biases too; ``init_scale`` leaves biases alone.
"""

from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Variant
from fairseq_residuals.wirings.core.registry import register_variant


class BottomConnection(Connection):
    """Stream: "bottom" (T, B, C), the input of the current layer."""

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        stream = s | {"bottom": s["x"]} if self.site.first else s
        return s["x"], stream


class B2TConnection(BottomConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.new_norm()

    def write(self, s: Stream, y: Tensor) -> Stream:
        x = s["x"] + y
        return s | {"x": self.norm(x + s["bottom"] if self.site.last else x)}


@register_variant("b2t")
class B2T(Variant):
    title = "B2T connection"
    paper = "Takase et al. 2023, B2T Connection: Serving Stability and Performance in Deep Transformers"
    year = 2023
    code = "takase/b2t_connection@c8e2ad4"
    verified = "authors' code: activations, gradients, generation, initialisation"
    connection = B2TConnection

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return "last of a layer: x = LN(x_in + x + F(x))", "else: x = LN(x + F(x))"
