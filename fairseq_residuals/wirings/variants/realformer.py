"""RealFormer: the attention scores of a layer are added to those of the next.

::

    scores ──► + ──┬───────────────► scores'
               ▲   └► softmax ─► ·v ─► ...
        q·k/√d ┘

He et al. 2021, Eq. 5: S' = QK^T/sqrt(d) + S, attention softmax(S')V; around it Post-LN. Three chains, none connected to
another: encoder self-attention, decoder self-attention, cross-attention; the first layer has nothing to add. No
parameters of its own. The scores travel without masks, each layer masks for itself. For deep stacks the authors divide
the sum by the number of layers in it before the softmax (``mean=true``; their README: 30 layers or more), and pass on
the sum. Here layers that layer dropout skips count in that number.

Checked against google-research/google-research@5b09c22 (``realformer/realformer.py``), a BERT encoder. No
encoder-decoder was published; that decoder and cross-attention have chains of their own is the reading of later
implementations.
``norm=pre`` wires the residuals around it as Pre-LN, which the paper mentions and does not test.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Summation, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import TopNorm


class RealFormerConnection(Connection):
    """Stream: "self_scores" (B, H, T, T), "cross_scores" (B, H, T, S): the sums so far, without masks."""

    edits_scores = True

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.pre = site.config.norm == "pre"
        self.summation: Summation = "pre" if self.pre else "post"
        self.layers_in_sum = site.layer + 1 if site.config.mean else 1
        self.norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.norm(s["x"]) if self.pre else s["x"], s

    def write(self, s: Stream, y: Tensor) -> Stream:
        x = s["x"] + y
        return s | {"x": x if self.pre else self.norm(x)}

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        chain, after = f"{self.site.kind}_scores", {}

        def add(scores: Tensor) -> Tensor:
            after[chain] = scores + s[chain] if chain in s else scores
            return after[chain] / self.layers_in_sum

        y, weights, s = super().attend(attn, query, key, value, s, edit_scores=add, **kwargs)
        return y, weights, s | after


@register_variant("realformer")
class RealFormer(TopNorm):
    title = "RealFormer"
    paper = "He et al. 2021, RealFormer: Transformer Likes Residual Attention"
    year = 2021
    code = "google-research/google-research@5b09c22"
    extension = (
        "Encoder-decoders (only an encoder was published): chains of scores for the encoder, the decoder and"
        " cross-attention, each by itself."
    )
    verified = (
        "authors' code, encoder: scores, activations, gradients; encoder-decoder (none was published):"
        " re-implementation of the equations"
    )
    connection = RealFormerConnection
    summation = "mixed"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        mean: bool = option(False, "divide the sums of scores by the number of the layer, from 1; for deep stacks")
        norm: Literal["post", "pre"] = option("post", "residuals as Post-LN or as Pre-LN")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        scores = " with R_F = R_F + S, S = R_F / l" if o.mean else " with R_F = R_F + S, S = R_F"
        if o.norm == "pre":
            attention, ffn = o.adds("F(LN(x))", edits=scores), o.adds("F(LN(x))")
        else:
            ffn = f"x = LN({o.residual} + F(x))"
            attention = ffn + scores
        return (
            "start: R_SA = 0; R_CA = 0",
            f"attention: {attention}",
            f"FFN: {ffn}",
            *cls.top(o),
        )

    @classmethod
    def has_top(cls, o: Any) -> bool:
        return bool(o.norm == "pre")
