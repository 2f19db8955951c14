"""Backout: what the middle layer gave is subtracted again on top of the stack.

::

    layer 0 ─► ... ─► layer m ─┬─► ... ─► layer L-1 ─► + ─► LN
                               └────── · -b ───────────┘

Output LN(x - b x_m), x_m the output of layer m, over Pre-LN layers; b is learned. Jordan et al. 2025, "modded-nanogpt"
(a speed record on GPT-2, no paper): b = 0.5 at first, m = 8 of 12; Karpathy 2025, "nanochat": b = 0.2, m = L/2. Checked
against karpathy/nanochat@92d63d4 (``gpt.py``) and KellerJordan/modded-nanogpt@ba3e54f (``train_gpt.py``).

The authors read it so: layers up to m gather context, which prediction does not need. It starts as Pre-LN with
``start=0``. By our choice m is L/2 of each stack, rounded down, but never the last layer (or what ``middle`` says); a
stack of one layer has none.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.config import LARGEST, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm
from fairseq_residuals.wirings.variants.unet_skip import LongSkips, middle_option, subtracted_middle


@register_variant("backout")
class Backout(LongSkips):
    title = "Backout"
    paper = "Karpathy and Jordan et al. 2025, nanochat and modded-nanogpt (code releases)"
    year = 2025
    code = "karpathy/nanochat@92d63d4"
    verified = "authors' code, nanochat and modded-nanogpt, with x0_lambdas and unet_skip: activations, gradients"
    ships_in = "nanochat (with x0_lambdas)"
    extension = "Each stack subtracts its own middle."

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        middle: Literal["half"] | int = middle_option()
        start: float = option(0.2, "where b starts", minimum=-LARGEST, maximum=LARGEST, for_training=True)

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return o.adds("F(LN(x))"), *subtracted_middle(o), *cls.top(o)

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape, backout=config.start)
