"""Connect a sub-layer to a Post-LN stream "x" and a Pre-LN stream "y": the connections of SiameseNorm."""

from typing import Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Site, Stream
from fairseq_residuals.wirings.variants.hybrid_norm import HybridNormConnection


def add_to_both(s: Stream, y: Tensor, scale: Literal["code", "paper"], site: Site) -> Stream:
    """Return the stream with the sub-layer's output in it, which "x" receives times 1/sqrt(2 l) or 1/sqrt(k)."""
    squared = 2 * (site.layer + 1) if scale == "code" else site.layer * site.n_sub + site.index + 1
    return s | {"x": s["x"] + squared**-0.5 * y, "y": s["y"] + y}


class SiameseNormConnection(Connection):
    """Feed the sub-layer the sum of both streams, a norm on each and on the sum."""

    def __init__(self, site: Site, scale: Literal["code", "paper"]) -> None:
        super().__init__(site)
        self.scale = scale
        self.post_norm = site.new_norm()
        self.pre_norm = site.new_norm()
        self.norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        x = self.post_norm(s["x"])
        return self.norm(x + self.pre_norm(s["y"])), s | {"x": x}

    def write(self, s: Stream, y: Tensor) -> Stream:
        return add_to_both(s, y, self.scale, self.site)


class HybridAttentionConnection(HybridNormConnection):
    """Feed attention the sum of a gain times "x" and the norm of "y"; queries, keys and values have their own."""

    def __init__(self, site: Site, scale: Literal["code", "paper"]) -> None:
        super().__init__(site, star=False)
        self.scale = scale
        self.gain = nn.Parameter(torch.ones(site.dim))
        self.pre_norm = site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        return self.gain * s["x"] + self.pre_norm(s["y"]), s

    def write(self, s: Stream, y: Tensor) -> Stream:
        return add_to_both(s, y, self.scale, self.site)
