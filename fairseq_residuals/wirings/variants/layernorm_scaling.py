"""LayerNorm Scaling: Pre-LN, in which the norms' output is divided by the square root of the layer's number.

::

    x ─┬─► LN ─► /√l ─► F ─► + ─► x'
       └─────────────────────┘

Sun et al. 2025, Eq. 12: x' = x + F(LN(x) / sqrt(l)), l counted from 1, the same for all sub-layers of a layer; the last
norm is not scaled. So attention scores are l times smaller, values and what the FFN is fed sqrt(l) times. Checked
against lmsdss/LayerNorm-Scaling@5d4dd11 (``modeling_llama.py``, ``NORM_TYPE=cod``). By our choice encoder and decoder
each count from 1, and cross-attention is scaled as its layer is.

Paper and code: since 33c3899 the repository's own command builds a model whose layers do nothing (it compares the
lower-cased name of the norm with "LNS"); 5d4dd11 does not. Until eb1a0a5 the code drew embeddings with a standard
deviation of sqrt(2/5), whatever the width; here fairseq draws them. The authors warn against weights that are scaled
down by depth as well (``init=ds_init``, ``init_scale=depth``).
"""

from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class LayerNormScalingConnection(PreLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm_gain = (site.layer + 1) ** -0.5

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.norm_gain * self.norm(s["x"]), s


@register_variant("layernorm_scaling")
class LayerNormScaling(OptionalTopNorm):
    title = "LayerNorm Scaling"
    paper = "Sun et al. 2025, The Curse of Depth in Large Language Models"
    year = 2025
    code = "lmsdss/LayerNorm-Scaling@5d4dd11"
    verified = "authors' code, decoder alone: activations, gradients; cross-attention: none"
    extension = "Each stack counts its own layers from 1, and cross-attention has its layer's factor."
    export_as = "pre_ln"
    connection = LayerNormScalingConnection

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return o.adds("F(LN(x) / sqrt(l))"), *cls.top(o)
