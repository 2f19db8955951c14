"""x0 lambdas: the embedding is mixed into the stream below every layer, with learned weights.

::

    x0 ─► · s ─► +
                 │
    x ──► · r ──►┴─┬─► LN ─► F ─► + ─► x'      r, s once per layer
                   └──────────────┘

Below layer l: x = r_l x + s_l x0, x0 what enters the first layer; then Pre-LN layers, and a norm on top. Jordan et al.
2024, "modded-nanogpt" (speed records on GPT-2, no paper), and Karpathy 2025, "nanochat". Checked against
karpathy/nanochat@92d63d4 (``gpt.py``) and KellerJordan/modded-nanogpt@ff93d20 (``train_gpt2.py``).

r = 1, s = 0 at first as in modded-nanogpt of 2024, and so the wiring starts as Pre-LN; ``start=nanochat`` lets r fall
from 1.15 to 1.05 and s from 0.2 to 0.05 over the layers. nanochat subtracts the middle of the stack too
(``backout=true``). Encoder and decoder mix in their own embedding each, which is our choice; weight decay spares the
weights. r compounds over the layers, and s does not: nanochat's r has a hundredth of s's rate (``stream_rate=0.01``).
"""

from dataclasses import dataclass
from typing import Any, Literal

from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.depth_mup import SPARED, UpdateScale
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm
from fairseq_residuals.wirings.variants.unet_skip import MIXED, LongSkips, middle_option, subtracted_middle


@register_variant("x0_lambdas")
class X0Lambdas(LongSkips):
    title = "x0 and residual lambdas"
    paper = "Jordan et al. 2024, modded-nanogpt (code release)"
    year = 2024
    code = "karpathy/nanochat@92d63d4"
    verified = "authors' code, nanochat and modded-nanogpt, decoder alone: activations, gradients; encoder: none"
    ships_in = "nanochat (start=nanochat, backout=true, norm_type=rms), modded-nanogpt's records since November 2024"
    extension = "Each stack has the weights and the embedding of its own; a decoder does not see its encoder's x0."

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        start: Literal["pre_ln", "nanochat"] = option("pre_ln", "where the weights start", for_training=True)
        backout: bool = option(False, "subtract the middle layer's output on top; see backout")
        middle: Literal["half"] | int = middle_option("backout")
        stream_rate: float = option(
            1.0, "factor on Adam's rate of r; nanochat: 0.01", minimum=1e-6, maximum=LARGEST, for_training=True
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return "start: x0 = x", MIXED, o.adds("F(LN(x))"), *(subtracted_middle(o) if o.backout else ()), *cls.top(o)

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape, weights=config.start, backout=0.2 if config.backout else None)

    def update_rules(self) -> dict[str, UpdateScale]:
        return super().update_rules() | {"stream_weight": SPARED._replace(rate=self.config.stream_rate)}
