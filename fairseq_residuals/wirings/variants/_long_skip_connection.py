"""Add the embedding and the output of a lower layer to the stream below a layer: the connections of long skips."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection

Gate = Literal["", "sigmoid", "none"]


class LongSkipConnection(PreLNConnection):
    """Add to the stream below a layer; other sub-layers than its first are Pre-LN."""

    def __init__(self, site: Site, *, skip: int | None, gate: Gate, weights: tuple[float, float] | None) -> None:
        """Make the scalars.

        Args:
            site: where the connection sits.
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
