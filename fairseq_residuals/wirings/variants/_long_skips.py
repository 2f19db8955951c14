"""Pre-LN with connections over many layers: the embedding, mirrored layers, and the middle of the stack.

::

    before layer l    x = x + g_l h_(L-1-l)          (skips: upper half, h the outputs of the lower half)
                      x = r_l x + s_l x0             (x0: the embedding)
    on top            x = x - b h_m                  (backout: the output of layer m)

Each part is the subject of a variant (``unet_skip``, ``x0_lambdas``, ``backout``), and an option of the others as far
as they were published together. Stream: "x0", "skip0", "skip1", ... and "middle", all (T, B, C).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream
from fairseq_residuals.wirings.core.config import MOST_LAYERS, option
from fairseq_residuals.wirings.core.depth_mup import SPARED, UpdateScale
from fairseq_residuals.wirings.variants._long_skip_connection import Gate, LongSkipConnection
from fairseq_residuals.wirings.variants.pre_ln import PreLN

BACKOUT = (
    "after each layer: h[l] = x\n"
    "where middle = min(floor(L / 2), L - 2)\n"
    "after each layer, l = L, middle >= 0, middle < L: x = x - backout_weight h[middle + 1]"
)
"""The equations of the middle that is subtracted."""


def middle_option() -> Literal["half"] | int:
    """Return a field of a variant's options: which layer is the middle."""
    text = "the layer whose output is subtracted, from 0; half: L / 2, but never the last"
    return option("half", text, minimum=0, maximum=MOST_LAYERS)


def partner(layer: int, depth: int, unpaired: Literal["middle", "last"]) -> int | None:
    """Return the layer whose output is added below ``layer``; None in the lower half, and where it has no partner."""
    half = depth // 2
    below = (depth if unpaired == "middle" else 2 * half) - 1 - layer
    return below if 0 <= below < half <= layer else None


class LongSkips(PreLN):
    """Keep what the connections need, and subtract the middle on top."""

    normalize_before = False
    export_as = ""

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
            config: the options.
            shape: the stack.
            gate: of the skips; empty: there are none.
            unpaired: which of an odd number of layers has no partner.
            weights: where those of the stream and of the embedding start; empty: it is not mixed in.
            backout: where the weight of the middle starts; None: it is not subtracted.
        """
        super().__init__(config, shape)
        self.gate, self.unpaired, self.weights = gate, unpaired, weights
        self.middle = min(shape.depth // 2, shape.depth - 2) if config.middle == "half" else config.middle
        subtracts = backout is not None and 0 <= self.middle < shape.depth
        self.backout_weight = nn.Parameter(torch.tensor([backout or 0.0])) if subtracts else None

    def update_rules(self) -> dict[str, UpdateScale]:
        own = ("skip_weight", "stream_weight", "embedding_weight", "backout_weight")
        return super().update_rules() | dict.fromkeys(own, SPARED)

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
        if i in map(self.source, range(self.shape.depth)):
            s[f"skip{i}"] = s["x"]
        return s | {"middle": s["x"]} if self.backout_weight is not None and i == self.middle else s

    def layer_output(self, s: Stream) -> Tensor:
        if self.backout_weight is None or "middle" not in s:
            return s["x"]
        return s["x"] - self.backout_weight * s["middle"]

    def close(self, s: Stream) -> Tensor:
        return super().close({"x": self.layer_output(s)})
