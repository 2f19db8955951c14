"""Transparent attention: each decoder layer attends to a learned mix of all encoder layers of its own.

::

    h_0 ──┐
    h_1 ──┼─► Σ_i softmax(W)[i,j] h_i ─► cross-attention of decoder layer j
    h_N ──┘

Bapna et al. 2018, Eq. 6 and 7: W is (N + 1, M) for N encoder and M decoder layers, the softmax is over the encoder
layers, h_0 the embedding; dropout on W in training. Both stacks are Post-LN. The decoder may be wired by any other
variant: an encoder wired by this one hands each of its layers a memory of its own.

No code was published by the authors. As in anoidgit/transformer (``transformer/TA``) the embedding passes a norm
before it is h_0. W starts at 0, so that the mix starts as the mean (the paper does not say).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import DepthWeights, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.post_ln import PostLNConnection


@register_variant("transparent_attention")
class TransparentAttention(Variant):
    """Give each decoder layer a mix of all encoder layers.

    Stream: "h0", "h1", ... (S, B, C): outputs of the encoder's layers so far.
    """

    title = "Transparent attention"
    paper = "Bapna et al. 2018, Training Deeper Neural Machine Translation Models with Transparent Attention"
    year = 2018
    verified = "the paper's equations (no code was published)"
    extension = "W starts at 0, so the mix at the mean; the embedding passes a norm, as in another group's code."
    connection = PostLNConnection
    summation = "post"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        weight_dropout: float = option(0.0, "dropout on W in training", minimum=0.0, maximum=0.99, for_training=True)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "encoder, start: x = LN_embed(x); h[0] = x",
            f"x = LN({o.residual} + F(x))",
            "encoder, after each layer: h[l] = x",
            "encoder: output [sum_{i=0..L} softmax_i(weight[i,j]) h[i] for j = 0..M-1]",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.mixes = shape.stack == "encoder"
        if self.mixes:
            self.embed_norm = shape.new_norm()
            self.weight = nn.Parameter(torch.zeros(shape.depth + 1, shape.dec_depth))
            self.weight_dropout = nn.Dropout(config.weight_dropout)

    @classmethod
    def refusal(cls, *, alone: bool, topmost: bool, depth: int = 2) -> str:
        if alone:
            return "it mixes the layers of an encoder for those of a decoder, and this stack stands alone"
        return "" if topmost else "what it makes is for a decoder, so no other layers of the encoder may follow it"

    def open(self, x: Tensor) -> Stream:
        if not self.mixes:
            return super().open(x)
        x = self.embed_norm(x)
        return {"x": x, "h0": x}

    def after_layer(self, i: int, s: Stream) -> Stream:
        return s | {f"h{i + 1}": s["x"]} if self.mixes else s

    def depth_weights(self, below: int) -> DepthWeights | None:
        if not self.mixes:
            return None
        matrix = self.weight.detach().float().cpu().softmax(0).T
        return DepthWeights("softmax(W)", matrix, 1, below, "into decoder layer", "output of encoder layer")

    def close(self, s: Stream) -> Tensor:
        """Return the memories of the decoder's M layers, concatenated, (S, B, M * C) in the encoder."""
        if not self.mixes:
            return s["x"]
        layers = torch.stack([s[f"h{k}"] for k in range(self.shape.depth + 1)])
        mix = self.weight_dropout(self.weight).softmax(0)
        return torch.einsum("nsbc,nm->sbmc", layers, mix.type_as(layers)).flatten(-2)
