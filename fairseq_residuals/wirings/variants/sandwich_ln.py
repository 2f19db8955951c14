"""Sandwich-LN: norms before and after every sub-layer, inside the residual branch.

::

    x ─┬─► LN ─► F ─► LN ─► + ─► x'
       └────────────────────┘

x' = x + LN(F(LN(x))), and a norm on top of the stack. Ding et al. 2021, "CogView: Mastering Text-to-Image Generation
via Transformers". Written after THUDM/CogView@189a12b (``mpu/sparse_transformer.py``), and checked against the
Sandwich-LN of lmsdss/LayerNorm-Scaling@3ac54dd (``modeling_llama.py``). CogView's norms divide by the largest magnitude
first, for fp16, which only changes what eps means; that is not done here. Its initialisation (N(0, 0.02), the last
matrices over sqrt(2L)) is a part of its recipe, and not of this wiring.

``multiplier`` is a constant factor of the branch outside of its last norm, as in HyperCLOVA X SEED Think.

``depth_scaled`` starts the gain of a branch's last norm at c / sqrt(L), L the stack's layers: Yin et al. 2025, "Pangu
Ultra", c = 0.283 and 0.432 for the FFN; Singh et al. 2026, "Arcee Trinity Large", c = 1. What is known of Pangu Ultra's
constants is second-hand, and its other weights N(0, 1/(2dL)) are left to a recipe. With c = 1 and branches that do not
correlate, the stream's variance grows from 1 to 3 in any depth, to 4 in a decoder with cross-attention. Whether these
gains decayed is not known; here weight decay spares them.

In encoder-decoders it is what T5Gemma does (huggingface/transformers@v5.23.0, ``modeling_t5gemma.py``): cross-attention
has both norms on its queries' stream, the encoder's output, which its last norm made, is not normalised again, and
dropout is on what is added to the stream (``dropout=after_norm``); CogView drops between F and its norm.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Kind, Site, Stream
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.depth_mup import SPARED, UpdateScale
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection

PANGU: dict[Kind, float] = {"self": 0.283, "cross": 0.283, "ffn": 0.432}
"""Start of the gain of the last norm in a branch of PanGu, by kind of sub-layer, times the root of the depth."""

DEPTH_SCALED = "c, where a branch's last gain starts at c / sqrt(L); true: 1, as in Trinity; pangu: 0.283, FFN 0.432"


class SandwichConnection(PreLNConnection):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        options = site.config
        self.multiplier = options.multiplier
        self.drops_first = options.dropout == "before_norm"
        gain = 1.0
        if options.depth_scaled is not False:
            c = PANGU[site.kind] if options.depth_scaled == "pangu" else float(options.depth_scaled)
            gain = c * site.depth**-0.5
        self.out_norm = site.new_norm(gain=gain)

    def outer(self, y: Tensor) -> Tensor:
        return y if self.drops_first else self.out_norm(y)

    def write(self, s: Stream, y: Tensor) -> Stream:
        return super().write(s, self.out_norm(y) if self.drops_first else y)


@register_variant("sandwich_ln")
class SandwichLN(OptionalTopNorm):
    title = "Sandwich-LN"
    paper = "Ding et al. 2021, CogView: Mastering Text-to-Image Generation via Transformers"
    year = 2021
    code = "huggingface/transformers@v5.23.0"
    verified = "T5Gemma, encoder and decoder, Trinity (AFMoE) and LayerNorm-Scaling's code: activations, gradients"
    ships_in = (
        "CogView; norm_type=rms: Gemma 2 and 3, T5Gemma, GLM-4-0414, GLM-4.1V, GLM-Image, GLM-OCR, Kolibri-1, LFM3;"
        " Pangu Ultra, Trinity (depth_scaled)"
    )
    extension = "depth_scaled in an encoder-decoder: each stack's own layers, and cross-attention as self-attention."
    connection: ClassVar[type[Connection]] = SandwichConnection

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        former = ("depth_count=layers", "scalar_rate=1")
        dropout: Literal["after_norm", "before_norm"] = option("after_norm", "dropout's side of the branch's last norm")
        multiplier: float = option(1.0, "factor on each branch, outside its norm", minimum=0.0, maximum=LARGEST)
        depth_scaled: bool | Literal["pangu"] | float = option(
            False, DEPTH_SCALED, minimum=0.0, maximum=LARGEST, for_training=True
        )

    @classmethod
    def branch(cls, o: Any) -> str:
        """Return what is added to the stream, in the equations."""
        normed = "LN_out(F(LN(x)))" if o.dropout == "before_norm" else "drop(LN_out(F'(LN(x))))"
        return normed if o.multiplier == 1 else f"multiplier {normed}"

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return o.adds(cls.branch(o)), *cls.top(o)

    def update_rules(self) -> dict[str, UpdateScale]:
        gains = {} if self.config.depth_scaled is False else {"out_norm.weight": SPARED}
        return super().update_rules() | gains
