"""U-net skips: outputs of the lower half of a stack are added below the layers of the upper half, in reverse order.

::

    layer 0 ─► layer 1 ─► layer 2 ─► layer 3
       │          └─ · w_2 ──► +        ▲
       └───────────── · w_3 ────────────┘

Below layer l of the upper half: x = x + w_l h_(L-1-l), h the outputs of the layers of the lower half; then Pre-LN
layers, and a norm on top. Jordan et al. 2024, "modded-nanogpt" (speed records on GPT-2, no paper): w = 1 at first
(``gate=none``), since September 2025 a sigmoid that starts at 0.18 (``gate=sigmoid``). Checked against
KellerJordan/modded-nanogpt@ff93d20 (``train_gpt2.py``) and @ba3e54f (``train_gpt.py``).

The authors mix in the embedding after the skip (``x0=true``, see ``x0_lambdas``), and subtract the middle of the stack
(``backout=true``, see ``backout``). They have even numbers of layers, or 11, where the last one has no partner
(``unpaired=last``). By our choice the middle one has none, skips stay within a stack, and there is the gate alone.
With w = 1 and layers that start as the identity, the top holds 1 + L/2 embeddings. L/2 outputs stay alive.
"""

from dataclasses import dataclass
from typing import Any, Literal

from fairseq_residuals.wirings.core.base import StackShape
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants._long_skips import BACKOUT, LongSkips, middle_option
from fairseq_residuals.wirings.variants.pre_ln import PreLN


@register_variant("unet_skip")
class UnetSkip(LongSkips):
    title = "U-net skips"
    paper = "Jordan et al. 2024, modded-nanogpt (code release)"
    year = 2024
    equations = (
        "start: x0 = x",
        "first of a layer, l > ceil(L / 2): x = x + sigmoid(skip_weight) h[L - l + 1]",
        "first of a layer: x = stream_weight x + embedding_weight x0",
        "x = x + F(LN(x))",
        "after each layer: h[l] = x",
        "output LN(x)",
    )
    rewrites = (
        ("unpaired", "last", "l > ceil(L / 2)", "l > floor(L / 2), l <= 2 floor(L / 2)"),
        ("unpaired", "last", "h[L - l", "h[2 floor(L / 2) - l"),
        ("gate", "none", "sigmoid(skip_weight)", "skip_weight"),
        ("x0", False, "start: x0 = x\n", ""),
        ("x0", False, "first of a layer: x = stream_weight x + embedding_weight x0\n", ""),
        ("backout", True, "after each layer: h[l] = x", BACKOUT),
    )
    code = "KellerJordan/modded-nanogpt@ba3e54f"
    verified = "authors' code, both gates, decoder alone: activations, gradients; encoder: none"
    ships_in = "modded-nanogpt's records since November 2024"
    extension = "Skips stay within a stack; of an odd number of layers the middle one has no partner."

    @dataclass(frozen=True)
    class Config(PreLN.Config):
        gate: Literal["sigmoid", "none"] = option(
            "sigmoid", "of a skip's weight: 0.18 at first, or none, and 1 at first"
        )
        unpaired: Literal["middle", "last"] = option("middle", "which of an odd number of layers has no partner")
        x0: bool = option(False, "mix in the embedding after the skip; see x0_lambdas")
        backout: bool = option(False, "subtract the middle layer's output on top; see backout")
        middle: Literal["half"] | int = middle_option()

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(
            config,
            shape,
            gate=config.gate,
            unpaired=config.unpaired,
            weights="pre_ln" if config.x0 else "",
            backout=0.5 if config.backout else None,
        )
