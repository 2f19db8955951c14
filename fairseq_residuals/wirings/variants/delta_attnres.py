"""Delta Attention Residuals: x' = x + F(LN(x + Σ_i a_i v_i)), a = softmax_i(w_k · RMSNorm_k(v_i)).

Luo et al. 2026: v_0 is the embedding, v_{k+1} what sub-layer k added, the softmax that of :mod:`.attention_residuals`.
w starts at 0: the v_i sum to x, which is Pre-LN (not with DyT or Derf, nor in blocks). In the authors' code w starts
random, and a block's source is x minus the source before (``as_coded``); its first sub-layer does not read it yet.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.attention_residuals import KEY_EPS, SoftmaxOverDepth, sources_of
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class DeltaAttnResConnection(PreLNConnection):
    """Stream: "source0", "source1", ..., and "start", x where the current block began, all (T, B, C)."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.over_depth = SoftmaxOverDepth(site.dim, eps=site.eps(KEY_EPS)) if site.layer or site.index else None

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        h = s["x"] if self.over_depth is None or not sources_of(s) else s["x"] + self.over_depth(s)
        return self.norm(h), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        x, n, block = s["x"], len(sources_of(s)), self.site.config.block
        y = y.to(x.dtype)  # under autocast sources are as exact as the stream
        if n == 0:
            s = s | {"source0": x} | ({"start": x} if block else {})
        elif block and self.site.first and self.site.layer % block == 0:
            added = x - s["start"]
            s = s | {f"source{n}": added, "start": added if self.site.config.as_coded else x}
        return super().write(s if block else s | {f"source{n or 1}": y}, y)


@register_variant("delta_attnres")
class DeltaAttnRes(OptionalTopNorm):
    title = "Delta Attention Residuals"
    paper = "Luo et al. 2026, Delta Attention Residuals"
    year = 2026
    code = "wdlctc/delta-attention-residuals-code@fc11c3e"
    verified = "authors' code, decoder, full and in blocks (as_coded): activations, gradients; cross-attention: none"
    extension = "Each stack has its own sources, cross-attention among them."
    connection = DeltaAttnResConnection
    summation = "none"

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        block: int = option(0, "layers per source; 0: sub-layers", minimum=0, maximum=MOST_LAYERS)
        as_coded: bool = option(False, "blocks as in the authors' code", only_with="block")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        last = "n" if o.block else "k-1"
        block = "v[n]" if o.as_coded else "x"
        return (
            "start: b = 0" if o.block else "start: v[0] = x",
            "k = 1: h = x",
            f"else: h = x + sum_{{i=0..{last}}} softmax_i(dot(query, key_gain * RMS(v[i]))) v[i]",
            *(
                (
                    "y = F(LN(h))",
                    f"first of a layer, (l - 1) mod block = 0: n = (l - 1) / block; v[n] = x - b; b = {block}",
                    "x = x + y",
                )
                if o.block
                else ("v[k] = F(LN(h)); x = x + v[k]",)
            ),
            *cls.top(o),
        )
