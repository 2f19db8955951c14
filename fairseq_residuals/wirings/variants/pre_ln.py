"""Pre-LN: the norm inside the residual branch, and one on top of each stack.

::

    x ─┬─► LN ─► F ─► + ─► x'
       └──────────────┘

Wang et al. 2019, Eq. 4 (also tensor2tensor, 2018). Checked against facebookresearch/fairseq@3d262bb
(``modules/transformer_layer.py``, ``normalize_before=True``).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Summation, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant


class PreLNConnection(Connection):
    summation: Summation = "pre"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.norm(s["x"]), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        return s | {"x": s["x"] + self.scaled(y)}

    def gains(self) -> tuple[Tensor | float, Tensor | float]:
        return 1.0, self.multiplier


class TopNorm(Variant):
    """End in a norm on top of the stack."""

    @classmethod
    def has_top(cls, o: Any) -> bool:
        """Return whether there is that norm."""
        return True

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.norm = shape.new_norm() if self.has_top(config) else None

    @classmethod
    def top(cls, o: Any) -> tuple[str, ...]:
        """Return the equation of the norm on top, where there is one."""
        return ("output LN(x)",) if cls.has_top(o) else ()


class OptionalTopNorm(TopNorm):
    """Let an option omit that norm; Pre-LN, and what differs from it within the layers, derive from this."""

    summation: ClassVar[Summation] = "pre"
    connection: ClassVar[type[Connection]] = PreLNConnection

    @dataclass(frozen=True)
    class Config(Variant.Config):
        final_norm: bool = option(
            True,
            "norm on top of the stack; fairseq's --no-decoder-final-norm (and its wiki103 architecture) omit it",
        )

    @classmethod
    def has_top(cls, o: Any) -> bool:
        return bool(o.final_norm)


@register_variant("pre_ln")
class PreLN(OptionalTopNorm):
    title = "Pre-LN"
    paper = "Wang et al. 2019, Learning Deep Transformer Models for Machine Translation"
    year = 2019
    code = "facebookresearch/fairseq@3d262bb"
    verified = "authors' code, fairseq 0.5 to 0.12: activations, gradients, generation, initialisation"
    ships_in = (
        "GPT-2, mBART, NLLB-200, Jais 2; norm_type=rms: LLaMA, Mistral to Small 4 and Large 4, Qwen to Qwen3, MiniMax"
        " M2 and M3, Kimi-Linear, K-EXAONE, Hy3, Laguna, Step 3.7, Solar Open, LFM2, VaultGemma"
    )
    normalize_before = True
    export_as = "pre_ln"

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return o.adds("F(LN(x))"), *cls.top(o)
