"""LAuReL, the learned augmented residual layer: x' = a F(LN(x)) + b g(x and what is below).

Menghani, Kumar and Kumar 2024, "LAuReL: Learned Augmented Residual Layer" (2411.07501, section 2), around Pre-LN::

    laurel_rw   x' = a y + b x,  (a, b) = 2 softmax of two numbers
    laurel_lr   x' = y + x + B A x,  A (r, C), B (C, r)
    laurel_pa   x' = y + x + B A Σ_j c_j x_j,  over the last k outputs of residual connections, x among them

No code was published, nor how these start. Ours: a = b = 1; A Xavier and B = 0; A and B Xavier and c = 0: as Pre-LN.
``rw=true`` adds a and b to the other two (RW+LR, RW+LR+PA). The option depth_mup divides B A x as it does y.

``laurel_gemma`` is that of Gemma 3n (huggingface/transformers 5.23.0, ``gemma3n``) around self-attention, in layers of
Sandwich-LN: x' = (x + LN(SA(u)) + u + LN(B A u)) / sqrt(2), u = LN(x); never Pre-LN. Gemma 3n's AltUp is not here.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Summation, Variant
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants._augmented_skip import AugmentedConnection, GemmaConnection

MOST_CHANNELS = 65_536
WEIGHED = (
    ("rw", True, "x = x + F", "a = 2 sigmoid(weights[0] - weights[1]); x = (2 - a) x + a F"),
    ("rw", True, " + g", " + (2 - a) g"),
)


class Laurel(Variant):
    paper = "Menghani et al. 2024, LAuReL: Learned Augmented Residual Layer"
    year = 2024
    verified = "the paper's equations (no code was published)"
    extension = "Each sub-layer has its own, cross-attention too. They start as Pre-LN."
    summation: ClassVar[Summation] = "pre"

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.norm = shape.new_norm()

    def close(self, s: dict[str, Tensor]) -> Tensor:
        return self.norm(s["x"])


@register_variant("laurel_rw")
class LaurelRW(Laurel):
    title = "LAuReL, residual weights"
    equations = ("a = 2 sigmoid(weights[0] - weights[1])", "x = (2 - a) x + a F(LN(x))", "output LN(x)")
    starts_as = "pre_ln"

    def connect(self, site: Site) -> Connection:
        return AugmentedConnection(site, weighs=True)


@register_variant("laurel_lr")
class LaurelLR(Laurel):
    title = "LAuReL, low rank"
    equations = ("g = up(down(x))", "x = x + F(LN(x)) + g", "output LN(x)")
    rewrites = WEIGHED
    starts_as = "pre_ln"

    @dataclass(frozen=True)
    class Config(Variant.Config):
        rank: int = option(4, "r, rows of A", minimum=1, maximum=MOST_CHANNELS)
        rw: bool = option(False, "with a and b of laurel_rw")

    def connect(self, site: Site) -> Connection:
        return AugmentedConnection(site, weighs=self.config.rw, rank=self.config.rank)


@register_variant("laurel_pa")
class LaurelPA(Laurel):
    """Stream: see :class:`._augmented_skip.AugmentedConnection`."""

    title = "LAuReL, previous activations"
    equations = (
        "X[k] = x",
        "g = sum_{j=0..min(past, k)-1} c[j] X[k-j]; g = up(down(g))",
        "x = x + F(LN(x)) + g",
        "output LN(x)",
    )
    rewrites = (("rank", 0, "; g = up(down(g))", ""), *WEIGHED)
    starts_as = "pre_ln"
    extension = "Each sub-layer has its own, cross-attention too, and looks back in its stack. They start as Pre-LN."

    @dataclass(frozen=True)
    class Config(Variant.Config):
        past: int = option(3, "k, outputs, x among them", minimum=1, maximum=MOST_LAYERS)
        rank: int = option(4, "r, rows of A; 0: no A and B", minimum=0, maximum=MOST_CHANNELS)
        rw: bool = option(False, "with a and b of laurel_rw")

    def connect(self, site: Site) -> Connection:
        return AugmentedConnection(site, weighs=self.config.rw, rank=self.config.rank, past=self.config.past)


@register_variant("laurel_gemma")
class LaurelGemma(Laurel):
    title = "LAuReL in Gemma 3n"
    year = 2025
    paper = "Gemma 3n (Google 2025), after Menghani, Kumar and Kumar 2024, LAuReL"
    equations = (
        "SA: u = LN(x); x = (x + drop(LN_out(F'(u))) + u + LN_low_rank(up(down(u)))) / sqrt(2)",
        "else: x = x + drop(LN_out(F'(LN(x))))",
        "output LN(x)",
    )
    code = "huggingface/transformers@v5.23.0"
    verified = "Gemma 3n in huggingface/transformers, within its AltUp: activations, gradients; cross-attention: none"
    ships_in = "Gemma 3n (norm_type=rms)"
    summation = "none"
    extension = "Cross-attention is as in Sandwich-LN. A and B start by Xavier's rule."

    @dataclass(frozen=True)
    class Config(Variant.Config):
        rank: int = option(64, "r, rows of A", minimum=1, maximum=MOST_CHANNELS)

    def connect(self, site: Site) -> Connection:
        return GemmaConnection(site, self.config.rank)
