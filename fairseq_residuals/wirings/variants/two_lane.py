"""Two lanes: from a layer on attention reads one stream and the FFN another, and both write to both.

::

    a ─┬─► LN ─► SA ─► · w0 ─► + ─► · r + ... ─► a'      b' likewise with w1; FFN reads LN(b)
       └────────── · r ────────┘

In layers from p on: y = A(LN(a)) + c x0, or y = FFN(LN(b)); a' = r a + w0 y; b' = r b + w1 y. Below there is a alone,
and b = a at p. On top LN((a + b) / 2). r, w0, w1 and c are scalars of each sub-layer, c of self-attention only, x0 the
embedding. Jordan et al. 2026, "modded-nanogpt" (a speed record on GPT-2, no paper). Checked against
KellerJordan/modded-nanogpt@699e93c (``train_gpt.py``), where p = 7 of 11 layers.

At first r = sqrt(1.1), c = 0, w0 = w1 = 1, but w1 = 1.5 of attention; ``start=pre_ln`` lets r and w1 start at 1 too,
and a = b is then Pre-LN. With sqrt(1.1) the stream of 100 layers is too large for half precision. Weight decay spares
the scalars. In the record r has five times the rate of the others (``stream_rate=5``), and there are a skip and a
backout besides (see ``unet_skip``, ``backout``), which are not here. By our choice p is two thirds of each stack, and
cross-attention reads a, too.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Summation
from fairseq_residuals.wirings.core.config import LARGEST, MOST_LAYERS, option
from fairseq_residuals.wirings.core.depth_mup import SPARED, UpdateScale
from fairseq_residuals.wirings.core.registry import register_variant
from fairseq_residuals.wirings.variants.pre_ln import OptionalTopNorm, PreLNConnection


class TwoLaneConnection(PreLNConnection):
    """Stream: "x" and from the split on "b", the lanes; "x0"; all (T, B, C)."""

    summation: Summation = "none"

    def __init__(self, site: Site, split: int, start: Literal["published", "pre_ln"]) -> None:
        super().__init__(site)
        kept, other = (1.1**0.5, 1.5 if site.kind != "ffn" else 1.0) if start == "published" else (1.0, 1.0)
        self.stream_weight, self.lane_weight = (nn.Parameter(torch.tensor([value])) for value in (kept, 1.0))
        self.other_weight = nn.Parameter(torch.tensor([other])) if site.layer >= split else None
        self.embedding_weight = nn.Parameter(torch.zeros(1)) if site.kind == "self" else None

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.norm(s["b"] if self.site.kind == "ffn" and self.other_weight is not None else s["x"]), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        y = self.scaled(y)
        y = y if self.embedding_weight is None else y + self.embedding_weight * s["x0"]
        written = {"x": self.stream_weight * s["x"] + self.lane_weight * y}
        if self.other_weight is not None:
            written["b"] = self.stream_weight * s["b"] + self.other_weight * y
        return s | written


@register_variant("two_lane")
class TwoLane(OptionalTopNorm):
    title = "Two lanes"
    paper = "Jordan et al. 2026, modded-nanogpt (code release)"
    year = 2026
    code = "KellerJordan/modded-nanogpt@699e93c"
    verified = "authors' code, decoder alone: both lanes, activations, gradients; encoder and cross-attention: none"
    ships_in = "one of modded-nanogpt's records, February 2026"
    extension = "Lanes split after two thirds of each stack; cross-attention reads the lane of self-attention."
    spares = ("lane_weight", "other_weight", "embedding_weight")
    summation = "none"

    @dataclass(frozen=True)
    class Config(OptionalTopNorm.Config):
        split: Literal["two_thirds"] | int = option(
            "two_thirds", "the first layer with two lanes, from 0", minimum=0, maximum=MOST_LAYERS
        )
        start: Literal["published", "pre_ln"] = option("published", "where the scalars start", for_training=True)
        stream_rate: float = option(
            1.0, "factor on Adam's rate of r; modded-nanogpt: 5", minimum=1e-6, maximum=LARGEST, for_training=True
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        return (
            "start: x0 = x; b = x",
            o.where("split", "floor(2 L / 3)"),
            "SA: y = F(LN(x)) + embedding_weight x0",
            "CA: y = F(LN(x))",
            "FFN: y = F(LN(b))",
            "l > split: b = stream_weight b + other_weight y",
            "x = stream_weight x + lane_weight y",
            "l <= split: b = x",
            "output LN((x + b) / 2)" if o.final_norm else "output (x + b) / 2",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        two_thirds = 2 * shape.depth // 3
        self.split = two_thirds if config.split == "two_thirds" else shape.require_layer("split", config.split)

    def connect(self, site: Site) -> Connection:
        return TwoLaneConnection(site, self.split, self.config.start)

    def update_rules(self) -> dict[str, UpdateScale]:
        return super().update_rules() | {"stream_weight": SPARED._replace(rate=self.config.stream_rate)}

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "x0": x} | ({"b": x} if self.split == 0 else {})

    def after_layer(self, i: int, s: Stream) -> Stream:
        return s | {"b": s["x"]} if i + 1 == self.split else s

    def layer_output(self, s: Stream) -> Tensor:
        return (s["x"] + s["b"]) / 2 if "b" in s else s["x"]
