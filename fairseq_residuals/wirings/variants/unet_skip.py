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

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection

Gate = Literal["", "sigmoid", "none"]


class LongSkipConnection(PreLNConnection):
    """Add to the stream below a layer; other sub-layers than its first are Pre-LN."""

    def __init__(self, site: Site, *, skip: int | None, gate: Gate, weights: tuple[float, float] | None) -> None:
        """Make the scalars.

        Args:
            skip: the layer whose output is added first, if any.
            gate: whether its weight is a sigmoid, which starts at 0.18, or plain, and starts at 1.
            weights: where those of the stream and of the embedding start, if it is mixed in.
        """
        super().__init__(site)
        self.source, self.gate = skip, gate
        start = -1.5 if gate == "sigmoid" else 1.0
        self.skip_weight = nn.Parameter(torch.tensor([start])) if skip is not None and site.first else None
        stream, embedding = weights or (1.0, 0.0)
        mixes = weights is not None and site.first
        self.stream_weight = nn.Parameter(torch.tensor([stream])) if mixes else None
        self.embedding_weight = nn.Parameter(torch.tensor([embedding])) if mixes else None

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        s = dict(s)
        if self.skip_weight is not None:
            weight = self.skip_weight.sigmoid() if self.gate == "sigmoid" else self.skip_weight
            s["x"] = s["x"] + weight * s.pop(f"skip{self.source}")
        if self.stream_weight is not None and self.embedding_weight is not None:
            s["x"] = self.stream_weight * s["x"] + self.embedding_weight * s["x0"]
        return super().read(s)


MIXED = "first of a layer: x = stream_weight x + embedding_weight x0"


def subtracted_middle(o: Any) -> tuple[str, ...]:
    """Return the equations of the middle that is subtracted."""
    return (
        "after each layer: h[l] = x",
        o.where("middle", "min(floor(L / 2), L - 2)"),
        "after each layer, l = L, middle >= 0, middle < L: x = x - backout_weight h[middle + 1]",
    )


def middle_option(only_with: str = "") -> Literal["half"] | int:
    """Return a field of a variant's options: which layer is the middle; ``only_with`` as in :class:`.Option`."""
    text = "the layer whose output is subtracted, from 0; half: L / 2, but never the last"
    return option("half", text, minimum=0, maximum=MOST_LAYERS, only_with=only_with)


def partner(layer: int, depth: int, unpaired: Literal["middle", "last"]) -> int | None:
    """Return the layer whose output is added below ``layer``; None in the lower half, and where it has no partner."""
    half = depth // 2
    below = (depth if unpaired == "middle" else 2 * half) - 1 - layer
    return below if 0 <= below < half <= layer else None


class LongSkips(OptionalTopNorm):
    """Pre-LN with connections over many layers, of which each variant is one; they may be options of each other.

    Stream: "x0", the embedding; "skip0", "skip1", ..., outputs of lower layers; "middle"; all (T, B, C).
    """

    spares = ("skip_weight", "stream_weight", "embedding_weight", "backout_weight")

    def __init__(
        self,
        config: Any,
        shape: StackShape,
        *,
        gate: Gate = "",
        unpaired: Literal["middle", "last"] = "middle",
        weights: Literal["", "pre_ln", "nanochat"] = "",
        backout: float | None = None,
    ) -> None:
        """Make the weight of the middle.

        Args:
            gate: kind of the skips' weights; empty: there are no skips.
            unpaired: which of an odd number of layers has no partner.
            weights: where those of the stream and of the embedding start; empty: it is not mixed in.
            backout: start of the weight of the middle; None: it is not subtracted.
        """
        super().__init__(config, shape)
        self.gate, self.unpaired, self.weights = gate, unpaired, weights
        half = min(shape.depth // 2, shape.depth - 2)
        self.middle = half if config.middle == "half" else shape.require_layer("middle", config.middle)
        subtracts = backout is not None and self.middle >= 0
        self.backout_weight = nn.Parameter(torch.tensor([backout or 0.0])) if subtracts else None

    def source(self, layer: int) -> int | None:
        """Return the layer whose output is added below ``layer``, if any."""
        return partner(layer, self.shape.depth, self.unpaired) if self.gate else None

    def connect(self, site: Site) -> Connection:
        part = site.layer / max(site.depth - 1, 1)
        start = {"": None, "pre_ln": (1.0, 0.0), "nanochat": (1.15 - 0.1 * part, 0.2 - 0.15 * part)}
        return LongSkipConnection(site, skip=self.source(site.layer), gate=self.gate, weights=start[self.weights])

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "x0": x} if self.weights else {"x": x}

    def after_layer(self, i: int, s: Stream) -> Stream:
        s = {key: value for key, value in s.items() if key != f"skip{self.source(i)}"}
        if i in [self.source(layer) for layer in range(self.shape.depth)]:
            s[f"skip{i}"] = s["x"]
        return s | {"middle": s["x"]} if self.backout_weight is not None and i == self.middle else s

    def layer_output(self, s: Stream) -> Tensor:
        if self.backout_weight is None or "middle" not in s:
            return s["x"]
        return s["x"] - self.backout_weight * s["middle"]


@register_variant("unet_skip")
class UnetSkip(LongSkips):
    title = "U-net skips"
    paper = "Jordan et al. 2024, modded-nanogpt (code release)"
    year = 2024
    code = "KellerJordan/modded-nanogpt@ba3e54f"
    verified = "authors' code, both gates, decoder alone: activations, gradients; encoder: none"
    ships_in = "modded-nanogpt's records since November 2024"
    extension = "Skips stay within a stack; of an odd number of layers the middle one has no partner."

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        gate: Literal["sigmoid", "none"] = option(
            "sigmoid", "gate of a skip's weight: 0.18 at first, or none, and 1 at first"
        )
        unpaired: Literal["middle", "last"] = option("middle", "which of an odd number of layers has no partner")
        x0: bool = option(False, "mix in the embedding after the skip; see x0_lambdas")
        backout: bool = option(False, "subtract the middle layer's output on top; see backout")
        middle: Literal["half"] | int = middle_option("backout")

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        middle = o.unpaired == "middle"
        upper = "l > ceil(L / 2)" if middle else "l > floor(L / 2), l <= 2 floor(L / 2)"
        mirrored = f"h[{'L' if middle else '2 floor(L / 2)'} - l + 1]"
        weight = "skip_weight" if o.gate == "none" else "sigmoid(skip_weight)"
        return (
            "start: x0 = x" if o.x0 else "",
            f"first of a layer, {upper}: x = x + {weight} {mirrored}",
            MIXED if o.x0 else "",
            o.adds("F(LN(x))"),
            *(subtracted_middle(o) if o.backout else ("after each layer: h[l] = x",)),
            *cls.top(o),
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(
            config,
            shape,
            gate=config.gate,
            unpaired=config.unpaired,
            weights="pre_ln" if config.x0 else "",
            backout=0.5 if config.backout else None,
        )
