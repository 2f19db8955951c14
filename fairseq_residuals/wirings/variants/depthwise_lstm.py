"""Depth-wise LSTM: instead of residuals, an LSTM along depth carries each token from layer to layer.

::

                 cell ──► ·f ─► + ───────┬─────► cell'
                                ▲ i·h    ▼
    x ─► LN ─► SA (+ CA) ─► c=[in,x] ─► i,f,o,h ─► ·o ──► x'

Xu et al. 2020, "Transformer with Depth-Wise LSTM", Eq. 2 to 10: c = [in, x]; i, f, o = σ(LN(W c + b)); cell' = f cell
+ i h; x' = o cell'; h = W2 gelu(LN(W1 c + b1)) + b2 (``hidden=2``) or gelu(LN(W c + b)) (``hidden=1``). ``in`` is
self-attention's output; in a decoder its sum with (``merge=add``), or a projection of it beside (``merge=concat``),
cross-attention's, which is fed self-attention's output plus x. The unit replaces the FFN; layers ``share`` parts of it.

No code was published. By our choice the cell starts at zero, attention reads through a norm, the stack ends in one,
each gate of Eq. 3 to 5 has a norm of its own, and a matrix brings a concatenation back to C channels; ``dropout`` is
inside the unit. The output starts as the embedding, and h is as wide as the FFN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, StackShape, Stream, Variant
from fairseq_residuals.wirings.core.config import option
from fairseq_residuals.wirings.core.registry import register_variant

EPS = 1e-6


class Gates(nn.Module):
    """Compute the gates of one layer from its input and the stream."""

    def __init__(self, shape: StackShape) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * shape.dim, 3 * shape.dim)
        self.norms = nn.ModuleList(shape.new_norm(eps=EPS) for _ in range(3))

    def forward(self, c: Tensor) -> tuple[Tensor, ...]:
        """Return i, f and o, each σ(LN(W c + b)), (T, B, 2 C) -> 3 times (T, B, C)."""
        return tuple(norm(z).sigmoid() for norm, z in zip(self.norms, self.linear(c).chunk(3, -1), strict=True))


def hidden_network(shape: StackShape, layers: Literal[2, 1], dropout: float) -> nn.Sequential:
    """Return the network that computes h, (T, B, 2 C) -> (T, B, C)."""
    width = shape.ffn_dim if layers == 2 else shape.dim
    network = [nn.Linear(2 * shape.dim, width), shape.new_norm(width, eps=EPS), nn.GELU(), nn.Dropout(dropout)]
    return nn.Sequential(*network, *([nn.Linear(width, shape.dim)] if layers == 2 else []))


def lstm_unit(shape: StackShape, config: Any, first: nn.ModuleDict) -> nn.ModuleDict:
    """Return what takes the place of one layer's FFN: "gates" and "hidden", the network for h.

    Args:
        shape: the stack.
        config: the options.
        first: the unit of the first layer, whose parts the others share; empty: this is it.
    """
    shared = {"gates": ("gates",), "all": ("gates", "hidden"), "none": ()}[config.share]
    unit = nn.ModuleDict({name: first[name] for name in shared if name in first})
    if "gates" not in unit:
        unit["gates"] = Gates(shape)
    if "hidden" not in unit:
        unit["hidden"] = hidden_network(shape, config.hidden, config.dropout)
    return unit


class DepthwiseLSTMConnection(Connection):
    """Run the unit after the last sub-layer of a layer; the others have none.

    Stream: "cell" (T, B, C); "self" (T, B, C) in a decoder layer, self-attention's output.
    """

    def __init__(self, site: Site, config: Any, unit: nn.ModuleDict | None) -> None:
        super().__init__(site)
        self.norm = site.new_norm(eps=EPS)
        self.merge = nn.Linear(2 * site.dim, site.dim) if site.kind == "cross" and config.merge == "concat" else None
        self.unit = unit

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.norm(s["x"] if self.site.first else s["self"] + s["x"]), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        if self.unit is None:
            return s | {"self": y}
        if not self.site.first:
            y = s["self"] + y if self.merge is None else self.merge(torch.cat([s["self"], y], -1))
        c = torch.cat([y, s["x"]], -1)
        i, f, o = self.unit["gates"](c)
        cell = f * s["cell"] + i * self.unit["hidden"](c)
        return s | {"x": o * cell, "cell": cell}


@register_variant("depthwise_lstm")
class DepthwiseLSTM(Variant):
    title = "Depth-wise LSTM"
    paper = "Xu et al. 2020, Transformer with Depth-Wise LSTM"
    year = 2020
    symbols: ClassVar[dict[str, str]] = {"W": "gates.linear", "W_1": "hidden.0", "LN_h": "hidden.1", "W_2": "hidden.4"}
    extension = (
        "Where the cell starts, the norms on what attention reads and on top, the width of the network for h (the"
        " FFN's), gates of each stack's own, the projection of merge=concat."
    )
    verified = "re-implementation of the equations (no code was published): activations, gradients"
    has_ffn = False

    @dataclass(frozen=True)
    class Config(Variant.Config):
        former = ("input_norm=true", "output_norm=true", "gate_norm=each", "cell=zero")
        hidden: Literal[2, 1] = option(2, "layers of the network that computes h")
        merge: Literal["add", "concat"] = option("add", "how a decoder layer merges its two attentions")
        share: Literal["gates", "all", "none"] = option("gates", "what the layers of a stack have in common")
        dropout: float = option(
            0.0, "dropout inside the network that computes h", minimum=0.0, maximum=0.99, for_training=True
        )

    @classmethod
    def equations(cls, o: Any) -> tuple[str, ...]:
        merged = "merge([in, F(LN(in + x))])" if o.merge == "concat" else "in + F(LN(in + x))"
        hidden = "W_2(gelu(LN_h(W_1(c))))" if o.hidden == 2 else "gelu(LN_h(W_1(c)))"
        return (
            "start: cell = 0",
            "SA: in = F(LN(x))",
            f"CA: in = {merged}",
            f"last of a layer: c = [in, x]; g = W(c); h = {hidden}",
            *(f"last of a layer: {gate} = sigmoid(LN[{i}](part(g, {i}, 3)))" for i, gate in enumerate("ifo")),
            "last of a layer: cell = f cell + i h; x = o cell",
            "output LN(x)",
        )

    def __init__(self, config: Any, shape: StackShape) -> None:
        super().__init__(config, shape)
        self.norm = shape.new_norm(eps=EPS)
        self.units: list[nn.ModuleDict] = []  # a list, since their connections register them

    def connect(self, site: Site) -> Connection:
        if not site.last:
            return DepthwiseLSTMConnection(site, self.config, None)
        self.units.append(lstm_unit(self.shape, self.config, self.units[0] if self.units else nn.ModuleDict()))
        return DepthwiseLSTMConnection(site, self.config, self.units[-1])

    def open(self, x: Tensor) -> Stream:
        return {"x": x, "cell": torch.zeros_like(x)}
