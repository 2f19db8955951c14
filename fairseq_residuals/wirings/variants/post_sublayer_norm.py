"""Norm of the sub-layer's output only: what a sub-layer reads and the residual are not normalised.

::

    x ─┬─► F ─► LN ─► + ─► x'
       └──────────────┘

Team OLMo 2024, section 3.2: x' = x + RMSNorm(F(x)), and a norm on top of the stack; before it Liu et al. 2022, "Swin
Transformer V2" (there res-post-norm). Written after allenai/OLMo-core@fa6c501 (``nn/transformer/block.py``). Dropout is
on what is added to the stream. By our choice cross-attention is one more sub-layer with a norm.

OLMo 2 has norms of queries and keys as well, over all heads together (``qk_norm=true``; without bias, which softmax
would not see in the keys). They are needed in deep stacks: the stream that attention reads grows, and scores with it.
In 24 layers at initialisation the first layer's gradient was 20 to 200 times the last one's, with these norms 4 to 5
times (width 64, 4 seeds).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm
from fairseq_residuals.wirings.variants.t_fixup import PlainConnection


class PostSublayerNormConnection(PlainConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.new_norm()
        normed = site.config.qk_norm and site.kind != "ffn"
        self.q_norm = site.new_norm(site.heads_dim, bias=False) if normed else None
        self.k_norm = site.new_norm(site.keys_dim or site.heads_dim, bias=False) if normed else None

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        norms = {} if self.q_norm is None else {"edit_query": self.q_norm, "edit_key": self.k_norm}
        return super().attend(attn, query, key, value, s, **kwargs, **norms)

    def outer(self, y: Tensor) -> Tensor:
        return self.norm(y)


@register_variant("post_sublayer_norm")
class PostSublayerNorm(OptionalTopNorm):
    title = "Post-sub-layer norm (OLMo 2)"
    paper = "Team OLMo 2024, 2 OLMo 2 Furious"
    year = 2024
    code = "huggingface/transformers@v5.23.0"
    verified = "authors' port to transformers, decoder alone: activations, gradients; cross-attention: none"
    ships_in = (
        "OLMo 2, OLMo 3, FlexOlmo, Olmo-Hybrid's attention layers (qk_norm=true, norm_type=rms); EXAONE 4 and 4.5"
        " (norm_type=rms), Swin V2"
    )
    extension = (
        "Cross-attention is one more sub-layer with a norm of its own; with qk_norm=true, as OLMo 2 is, its queries and"
        " keys have theirs too."
    )
    connection = PostSublayerNormConnection

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        qk_norm: bool = option(False, "norms of queries and keys before the heads are split, as in OLMo 2")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        added = o.adds("drop(LN(F'(x)))")
        if not o.qk_norm:
            return added, *cls.top(o)
        normed = o.adds("drop(LN(F'(x)))", edits=" with q = LN_q(q), k = LN_k(k)")
        return f"attention: {normed}", f"FFN: {added}", *cls.top(o)
