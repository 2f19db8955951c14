"""Connect a sub-layer to two lanes, of which it reads one and writes both."""

from typing import Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream, Summation
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection


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
