"""Build the networks of an LSTM along depth, for the gates and for h, which layers may share."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import StackShape

EPS = 1e-6


class Gates(nn.Module):
    """Compute the gates of one layer from its input and the stream."""

    def __init__(self, shape: StackShape, norm: Literal["each", "joint"]) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * shape.dim, 3 * shape.dim)
        widths = [shape.dim] * 3 if norm == "each" else [3 * shape.dim]
        self.norms = nn.ModuleList(shape.new_norm(width, eps=EPS) for width in widths)

    def forward(self, c: Tensor) -> tuple[Tensor, ...]:
        """Return i, f and o, each σ(LN(W c + b)), (T, B, 2 C) -> 3 times (T, B, C)."""
        parts = self.linear(c).chunk(len(self.norms), -1)
        normalised = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        return tuple(gate for z in normalised for gate in z.sigmoid().chunk(3 // len(parts), -1))


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
        unit["gates"] = Gates(shape, config.gate_norm)
    if "hidden" not in unit:
        unit["hidden"] = hidden_network(shape, config.hidden, config.dropout)
    return unit
