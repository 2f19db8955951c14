"""HybridNorm: norms on queries, keys and values instead of before attention, and one over the sum after it.

::

    x ─┬─► q,k,v ─► LN per head ─► SA ─► + ─► LN ─┬─► FFN ─► + ─► x'
       └──────────────────────────────────┘        └──────────┘

Zhuo et al. 2025, "HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid Normalization":
u = N(x + W_O softmax(N(q) N(k)^T / sqrt(d_head)) N(v)), x' = u + FFN(u). The norms of q, k and v are over the channels
of one head after the projection, with one gain each for all heads. What the FFN gives is not normalised, so a norm
follows on top of the stack. ``first_layer=star`` is HybridNorm*: the first layer has a norm before attention too, and
its FFN as in Pre-LN. Checked against BryceZhuo/HybridNorm@f0dd605 (``dense_model/olmo/model.py``).

The authors' norms are RMSNorm with eps 1e-5 (``norm=rms`` has 1e-6). Here all norms are of the kind that ``norm_type``
says, but those of q, k and v never have a bias: the authors' have none, and softmax would not see that of the keys.
By our choice cross-attention is as self-attention, and the FFN's norm follows it.
With the option ``value_residual`` values are mixed first, then normalised. The authors' initialisation
(``full_megatron``: truncated normal, std sqrt(2/(5d)), output projections over sqrt(2L)) is a part of their recipe, and
not of this wiring; users of their code report that it does not converge without (issue 2 of the repository).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from fairseq_residuals.wirings.core.attention import Edit
from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import TopNorm


def edit_heads(norm: Callable[[Tensor], Tensor], head_dim: int, edit: Edit | None, x: Tensor) -> Tensor:
    """(positions, B, C) -> the same: what another ``edit`` makes of it, each head normalised."""
    x = x if edit is None else edit(x)
    return norm(x.unflatten(-1, (-1, head_dim))).flatten(-2)


class HybridNormConnection(Connection):
    def __init__(self, site: Site, star: bool) -> None:
        super().__init__(site)
        attention = site.kind != "ffn"
        self.pre = star and site.layer == 0
        self.norm = site.new_norm() if self.pre or not attention else None
        self.head_dim = site.head_dim
        if attention:
            self.q_norm, self.k_norm, self.v_norm = (site.new_norm(self.head_dim, bias=False) for _ in range(3))

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        h = s["x"] if self.norm is None else self.norm(s["x"])
        return h, s if self.pre else s | {"x": h}

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        norms = {"edit_query": self.q_norm, "edit_key": self.k_norm, "edit_value": self.v_norm}
        edits = {name: partial(edit_heads, norm, self.head_dim, kwargs.get(name)) for name, norm in norms.items()}
        return super().attend(attn, query, key, value, s, **kwargs | edits)

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": s["x"] + y}


NORMALIZED = "with q = LN_q(q) per head, k = LN_k(k) per head, v = LN_v(v) per head"


@register_variant("hybrid_norm")
class HybridNorm(TopNorm):
    title = "HybridNorm"
    paper = "Zhuo et al. 2025, HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid Normalization"
    year = 2025
    code = "BryceZhuo/HybridNorm@f0dd605"
    verified = "authors' code, decoder: activations, gradients; encoder and cross-attention: none"
    extension = (
        "Published for decoders alone. Cross-attention is as self-attention, with norms on its queries and on the keys"
        " and values of the memory; the norm over the sum is the FFN's."
    )

    @dataclass(frozen=True)
    class Config(Variant.Config):
        first_layer: Literal["plain", "star"] = option(
            "plain", "star (HybridNorm*): the first layer with a norm before attention, and its FFN as in Pre-LN"
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        star = o.first_layer == "star"
        others = "else " if star else ""
        return (
            f"l = 1, attention: x = x + F(LN(x)) {NORMALIZED}" if star else "",
            f"{others}attention: x = x + F(x) {NORMALIZED}",
            "l = 1, FFN: x = x + F(LN(x))" if star else "",
            f"{others}FFN: u = LN(x); x = u + F(u)",
            "output LN(x)",
        )

    def connect(self, site: Site) -> Connection:
        return HybridNormConnection(site, self.config.first_layer == "star")
