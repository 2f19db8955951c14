"""Layers of one stack wired by different variants."""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_residuals.core.base import Connection, Site, StackShape, Stream, Variant


class Segments(Variant):
    """Each segment is a stack of its own, of the depth that it has: opened on the output of the one below, and closed
    (with its top norm, where it has one) before the next."""

    name = "segments"
    equations = ()

    def __init__(self, variants: list[Variant], shape: StackShape) -> None:
        """
        Args:
            variants: from the bottom, each built for its part of the depth.
        """
        super().__init__(None, shape)
        self.variants = nn.ModuleList(variants)
        self.places = [(variant, i) for variant in variants for i in range(variant.shape.depth)]

    def at(self, i: int) -> tuple[Variant, int]:
        return self.places[i]

    def connect(self, site: Site) -> Connection:
        raise NotImplementedError("a layer is connected by the segment that it belongs to")

    def open(self, x: Tensor) -> Stream:
        return self.places[0][0].open(x)

    def after_layer(self, i: int, s: Stream) -> Stream:
        variant, inside = self.places[i]
        s = variant.after_layer(inside, s)
        if inside == variant.shape.depth - 1 and i < len(self.places) - 1:
            return self.places[i + 1][0].open(variant.close(s))
        return s

    def close(self, s: Stream) -> Tensor:
        return self.places[-1][0].close(s)
