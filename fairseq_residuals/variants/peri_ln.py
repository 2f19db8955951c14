"""Norms before and after every sub-layer, inside the residual branch: Sandwich-LN, and Peri-LN.

::

    x ─┬─► LN ─► F ─► LN ─► + ─► x'
       └────────────────────┘

Both: x' = x + LN(F(LN(x))), and a norm on top of the stack. ``peri_ln`` normalises the embeddings as well, which its
paper leaves open.

* Ding et al. 2021, "CogView: Mastering Text-to-Image Generation via Transformers" (Sandwich-LN). Written after
  THUDM/CogView@189a12b (``mpu/sparse_transformer.py``), and checked against the Sandwich-LN of
  lmsdss/LayerNorm-Scaling@3ac54dd (``modeling_llama.py``). CogView's norms divide by the largest magnitude first, for
  fp16, which only changes what eps means; that is not done here. Its initialisation (N(0, 0.02), the last matrices over
  sqrt(2L)) is a part of its recipe, and not of this wiring.
* Kim et al. 2025, "Peri-LN: Revisiting Normalization Layer in the Transformer Architecture". No code was published.

By our choice dropout is on what is added to the stream, as in allenai/OLMo-core@fa6c501, which has this block too
(``dropout=after_norm``), or between F and its norm, as in CogView (``before_norm``), and cross-attention is one more
sub-layer with both norms.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fairseq_residuals.core.base import Connection, Site, StackShape, Stream
from fairseq_residuals.core.config import option
from fairseq_residuals.core.registry import register_variant
from fairseq_residuals.variants.pre_ln import PreLN, PreLNConnection


class SandwichConnection(PreLNConnection):
    def __init__(self, site: Site, dropout: Literal["after_norm", "before_norm"]) -> None:
        super().__init__(site)
        self.out_norm = site.new_norm()
        self.drops_first = dropout == "before_norm"

    def outer(self, y: Tensor) -> Tensor:
        return y if self.drops_first else self.out_norm(y)

    def write(self, s: Stream, y: Tensor) -> Stream:
        return super().write(s, self.out_norm(y) if self.drops_first else y)


@register_variant("sandwich_ln")
class SandwichLN(PreLN):
    title = "Sandwich-LN"
    paper = "Ding et al. 2021, CogView: Mastering Text-to-Image Generation via Transformers"
    year = 2021
    equations: ClassVar[tuple[str, ...]] = ("x = x + drop(LN_out(F'(LN(x))))", "output LN(x)")
    rewrites: ClassVar[tuple[tuple[str, Any, str, str], ...]] = (
        ("dropout", "before_norm", "drop(LN_out(F'(LN(x))))", "LN_out(F(LN(x)))"),
    )
    code = "THUDM/CogView@189a12b"
    verified = "another group's code (LayerNorm-Scaling), decoder alone: activations, gradients; cross-attention: none"
    ships_in = "CogView; Gemma 2 and 3 (norm_type=rms)"
    extension = (
        "Cross-attention is one more sub-layer with both norms; the encoder's output is not normalised again. Dropout"
        " after the norm."
    )
    normalize_before = False
    stock = ""

    @dataclass(frozen=True)
    class Config(PreLN.Config):
        dropout: Literal["after_norm", "before_norm"] = option("after_norm", "on which side of the branch's last norm")

    def connect(self, site: Site) -> Connection:
        return SandwichConnection(site, self.config.dropout)


@register_variant("peri_ln")
class PeriLN(SandwichLN):
    title = "Peri-LN"
    paper = "Kim et al. 2025, Peri-LN: Revisiting Normalization Layer in the Transformer Architecture"
    year = 2025
    equations = ("start: x = LN_embed(x)", *SandwichLN.equations)
    rewrites = (
        *SandwichLN.rewrites,
        ("embed_norm", False, "start: x = LN_embed(x)", ""),
    )
    verified = "the paper's equations; without the embedding's norm it is sandwich_ln"
    code = ""
    extension = SandwichLN.extension

    @dataclass(frozen=True)
    class Config(SandwichLN.Config):
        embed_norm: bool = option(True, "norm of the embeddings, below the first layer")

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.embed_norm = shape.new_norm() if config.embed_norm else None

    def open(self, x: Tensor) -> Stream:
        return super().open(x if self.embed_norm is None else self.embed_norm(x))
