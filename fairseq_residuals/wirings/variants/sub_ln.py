"""Sub-LN (Magneto): Pre-LN with a second norm inside each sub-layer, and an initialisation scaled by depth.

::

    x ─┬─► LN ─► q,k,v ─► heads ─► LN ─► W_O ─► + ─┬─► LN ─► fc1 ─► act ─► LN ─► fc2 ─► + ─► x'
       └───────────────────────────────────────────┘└────────────────────────────────────┘

Wang et al. 2022, Figure 2. With N encoder and M decoder layers, FFN, values and attention's output are multiplied at
initialisation, weights and biases, by sqrt(log(3M) log(2N) / 3) in the encoder of a pair, sqrt(log(3M)) in its decoder
(cross-attention not), sqrt(log(2L)) where a stack is alone. Checked against microsoft/torchscale@4d1e0e8. There
cross-attention has no inner norm, and the base initialisation is PyTorch's for all linear layers.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class SubLNConnection(PreLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        widths = {"self": site.dim, "ffn": site.ffn_dim}
        self.inner_norm = site.new_norm(widths[site.kind]) if site.kind in widths else None

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        if self.inner_norm is None:
            return super().attend(attn, query, key, value, s, **kwargs)
        return super().attend(attn, query, key, value, s, edit_heads=self.inner_norm, **kwargs)

    def inner(self, h: Tensor) -> Tensor:
        assert self.inner_norm is not None
        return self.inner_norm(h)


@register_variant("sub_ln")
class SubLN(OptionalTopNorm):
    title = "Sub-LN"
    paper = "Wang et al. 2022, Foundation Transformers"
    year = 2022
    code = "microsoft/torchscale@4d1e0e8"
    verified = "authors' code: activations, gradients, generation, initialisation"
    ships_in = "BEiT-3, Kosmos-1; BitNet b1.58 (norm_type=rms, the forward pass)"
    draws_weights = True
    connection = SubLNConnection

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            f"SA: {o.adds('F(LN(x))', edits=' with o = LN_inner(o)')}",
            f"CA: {o.adds('F(LN(x))')}",
            f"FFN: {o.adds('F(LN(x))', edits=' with a = LN_inner(a)')}",
            *cls.top(o),
        )

    @torch.no_grad()
    def init_weights(self, layers: nn.ModuleList, embed_tokens: nn.Module | None) -> None:
        s = self.shape
        if not s.cross:
            gain = math.sqrt(math.log(2 * s.depth))
        elif s.stack == "decoder":
            gain = math.sqrt(math.log(3 * s.dec_depth))
        else:
            gain = math.sqrt(math.log(3 * s.dec_depth) * math.log(2 * s.enc_depth) / 3)
        for name, module in layers.named_modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
                if name.endswith(("fc1", "fc2", "out_proj", "v_proj")) and "encoder_attn" not in name:
                    for parameter in module.parameters():
                        parameter.mul_(gain)
