"""SiameseNorm: a Post-LN and a Pre-LN stream side by side; every sub-layer reads both and is added to both.

::

    x ─► LN ─┬─────────────────── + ─► x'
             │                    ▲ 1/c
             + ─► LN ─► F ────────┤
             ▲                    ▼
    y ─┬─► LN                     + ─► y'       output: LN(LN(x_N) + LN(y_N))
       └──────────────────────────┘

Li et al. 2026, "SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm", Algorithm 1: x_0 = y_0 the embedding,
o = F(x + LN(y)), x' = LN(x + o), y' = y + o, output x_N + LN(y_N). To suit the recipes of Pre-LN, the paper adds a norm
on what F is fed and a factor 1/sqrt(l + 1) on what x receives. With the norms of x at 0, this is Pre-LN.
Checked against Qwen-Applications/SiameseNorm@70efa00 (``deit-model-siamesenorm.py``, ``OLMo_model_hybrid_pre.py``).

The authors' language models have HybridNorm as the Post-LN stream (``post_stream=hybrid_norm``): attention is fed
g x + LN(y), g a gain per channel that starts at 1, x and the sum without norms; queries, keys and values have theirs.

Paper and code: the code has x's norm before a sub-layer instead of after it, which puts one on the embedding, and one
more norm on the output: as here. Its factor is 1/sqrt(2 l), l the layer, counted from 1 (``scale=code``). Of the paper
only summaries were at hand for the factor; its l is read here as its algorithm's index, which counts sub-layers from 0:
``scale=paper`` is 1/sqrt(k) for the k-th sub-layer. In a layer's second sub-layer, of two, that is the code's. By our
choice cross-attention is a third sub-layer with its layer's scale.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.hybrid_norm import NORMALIZED, HybridNormConnection


def add_to_both(s: Stream, y: Tensor, scale: Literal["code", "paper"], site: Site) -> Stream:
    """Return the stream with the sub-layer's output in it, which "x" receives times 1/sqrt(2 l) or 1/sqrt(k)."""
    squared = 2 * (site.layer + 1) if scale == "code" else site.layer * site.n_sub + site.index + 1
    return s | {"x": s["x"] + squared**-0.5 * y, "y": s["y"] + y}


class SiameseNormConnection(Connection):
    """Feed the sub-layer the sum of both streams, a norm on each and on the sum."""

    def __init__(self, site: Site, scale: Literal["code", "paper"]) -> None:
        super().__init__(site)
        self.scale = scale
        self.post_norm = site.new_norm()
        self.pre_norm = site.new_norm()
        self.norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        x = self.post_norm(s["x"])
        return self.norm(x + self.pre_norm(s["y"])), s | {"x": x}

    def write(self, s: Stream, y: Tensor) -> Stream:
        return add_to_both(s, y, self.scale, self.site)


class HybridAttentionConnection(HybridNormConnection):
    """Feed attention the sum of a gain times "x" and the norm of "y"; queries, keys and values have their own."""

    def __init__(self, site: Site, scale: Literal["code", "paper"]) -> None:
        super().__init__(site, star=False)
        self.scale = scale
        self.gain = nn.Parameter(torch.ones(site.dim))
        self.pre_norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.gain * s["x"] + self.pre_norm(s["y"]), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        return add_to_both(s, y, self.scale, self.site)


@register_variant("siamese_norm")
class SiameseNorm(Variant):
    """Stream: "x", the Post-LN stream, whose norm comes with the next read; "y" (T, B, C), the Pre-LN stream."""

    title = "SiameseNorm"
    paper = "Li et al. 2026, SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm"
    year = 2026
    code = "Qwen-Applications/SiameseNorm@70efa00"
    verified = (
        "authors' code, encoder of a vision Transformer, and with post_stream=hybrid_norm language model: activations"
        " of both streams, gradients"
    )
    extension = (
        "Cross-attention is a third sub-layer between the two, with norms of its own and its layer's scale; the decoder"
        " reads the encoder's one output. What scale=paper counts."
    )

    @dataclass(frozen=True)
    class Config(Variant.Config):
        scale: Literal["code", "paper"] = option(
            "code",
            "factor on what the Post-LN stream gets: 1/sqrt(2 l) in layer l, or 1/sqrt(k) in sub-layer k, both from 1",
        )
        post_stream: Literal["post_ln", "hybrid_norm"] = option(
            "post_ln", "norms of the Post-LN stream: as in Post-LN, or as in HybridNorm (the authors' language models)"
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        hybrid = o.post_stream == "hybrid_norm"
        return (
            "start: y = x",
            f"attention: z = F(gain * x + LN_pre(y)) {NORMALIZED}" if hybrid else "",
            f"{'else: ' if hybrid else ''}x = LN_post(x); z = F(LN(x + LN_pre(y)))",
            f"x = x + z / {'sqrt(k)' if o.scale == 'paper' else 'sqrt(2 l)'}",
            "y = y + z",
            "output LN(LN_post(x) + LN_pre(y))",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.post_norm = shape.new_norm()
        self.pre_norm = shape.new_norm()
        self.norm = shape.new_norm()

    def connect(self, site: Site) -> Connection:
        hybrid = self.config.post_stream == "hybrid_norm" and site.kind != "ffn"
        return (HybridAttentionConnection if hybrid else SiameseNormConnection)(site, self.config.scale)

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "y": x}

    def layer_output(self, s: Stream) -> Tensor:
        return self.post_norm(s["x"]) + self.pre_norm(s["y"])
