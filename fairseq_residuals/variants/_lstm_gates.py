"""The gates of an LSTM along depth."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from fairseq_residuals.core.base import StackShape

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
