"""Learned gains on the branches: LayerScale, and ReZero, which has no norms.

::

    x ─┬─► LN ─► F ─► · g ─► + ─► x'     (layer_scale)      x ─┬─► F ─► · a ─► + ─► x'     (re_zero)
       └─────────────────────┘                                 └───────────────┘

``layer_scale``: Touvron et al. 2021, "Going Deeper with Image Transformers", section 2: x' = x + g * F(LN(x)), a gain
per channel and sub-layer, which starts at 0.1 up to 18 layers, 1e-5 up to 24, and 1e-6 beyond (``gain=depth``), and a
norm on top of the stack. Checked against facebookresearch/deit@7e160fe (``cait_models.py``). Paper and code: the paper
has 0.1 up to 18 layers, 1e-5 at 24 and 1e-6 deeper. In a list of variants a stack's own layers are those of this part.
Weights decay as any do in fairseq, gains too; the authors spare these. In the code the smallest model of 36 layers
starts at 1e-5, and a layer by itself at 1e-4. Its norms have eps 1e-6. By our choice cross-attention has gains of its
own, and the deeper stack decides where gains start.

``re_zero``: Bachlechner et al. 2020: x' = x + a F(x), without any norm (so the option ``norm_type`` has nothing to
choose), a number per layer that starts at 0 and that all sub-layers of the layer share. Checked against
majumderb/rezero@e2c94a8 (``rezero/transformer/rztx.py``), whose weights are drawn as PyTorch does, here as fairseq
does. In the first update nothing of the layers moves but these numbers, and of a pair only the decoder's: the loss does
not see the encoder before. Cross-attention of Idefics and Mllama has such a number, too, but under tanh and around a
norm: x' = x + tanh(a) F(LN(x)).
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, Stream, Summation, Variant
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


def first_gain(depth: int) -> float:
    """Return where the gains of a model of ``depth`` layers start by the paper's rule."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


class LayerScaleConnection(PreLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        gain = site.config.gain
        start = first_gain(max(site.enc_depth, site.dec_depth)) if gain == "depth" else gain
        self.gain = nn.Parameter(torch.full((site.dim,), start))

    def write(self, s: Stream, y: Tensor) -> Stream:
        return super().write(s, self.gain * y)

    def gains(self) -> tuple[Tensor | float, Tensor | float]:
        return 1.0, self.multiplier * self.gain


@register_variant("layer_scale")
class LayerScale(OptionalTopNorm):
    title = "LayerScale"
    paper = "Touvron et al. 2021, Going Deeper with Image Transformers"
    year = 2021
    code = "facebookresearch/deit@7e160fe"
    verified = "authors' code, decoder alone: activations, gradients; cross-attention: none"
    ships_in = "CaiT, DINOv2, DINOv3, Mimi, Qwen3-Omni's code2wav"
    extension = (
        "Cross-attention has gains of its own; the deeper of the two stacks decides where gains start, for 19 to 23"
        " layers as for 24."
    )
    export_as = "pre_ln"
    connection = LayerScaleConnection

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        gain: Literal["depth"] | float = option(
            "depth",
            "where the gains start; depth: 0.1 to 18 layers, 1e-5 to 24, 1e-6 beyond",
            minimum=0.0,
            maximum=LARGEST,
            for_training=True,
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return o.adds("gain * F(LN(x))"), *cls.top(o)


class ReZeroConnection(Connection):
    """Stream: "gain" (1,), the number of the current layer.

    The sub-layers of a layer are handed the parameter of the first along the stream, so that the model has it once.
    """

    summation: Summation = "pre"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.gain = nn.Parameter(torch.zeros(1)) if site.first else None

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return s["x"], s if self.gain is None else s | {"gain": self.gain}

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": s["x"] + s["gain"] * self.scaled(y)}


@register_variant("re_zero")
class ReZero(Variant):
    title = "ReZero"
    paper = "Bachlechner et al. 2020, ReZero is All You Need: Fast Convergence at Large Depth"
    year = 2020
    starts_as = "embedding"
    code = "majumderb/rezero@e2c94a8"
    verified = "authors' code, encoder and decoder: activations, gradients"
    connection = ReZeroConnection
    summation = "pre"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        former = ("share=layer",)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (o.adds("gain F(x)"),)
