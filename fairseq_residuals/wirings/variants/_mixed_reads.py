"""Connections of which attention reads mixes of all layers below, and not the stream."""

from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Site, Stream
from fairseq_residuals.wirings.variants.pre_ln import PreLNConnection

READS = ("q", "k", "v")


class ThreeReads(PreLNConnection):
    """Feed self-attention three mixes, of which "norm" and "k_norm", "v_norm" make queries, keys and values.

    Stream: "q", "k", "v" (T, B, C) above the first layer; they become "key" and "value" of attention.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.k_norm, self.v_norm = site.new_norm(), site.new_norm()

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        rest = {name: x for name, x in s.items() if name not in READS}
        return self.norm(s["q"]), rest | {"key": self.k_norm(s["k"]), "value": self.v_norm(s["v"])}

    def attend(
        self, attn: nn.Module, query: Tensor, key: Tensor, value: Tensor, s: Stream, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Stream]:
        rest = {name: x for name, x in s.items() if name not in ("key", "value")}
        # an edit opens attention: fairseq's module makes keys and values of self-attention from the queries' input
        kwargs.setdefault("edit_query", _unchanged)
        return super().attend(attn, query, key, value, rest, **kwargs)


def _unchanged(x: Tensor) -> Tensor:
    return x


class MixedQuery(PreLNConnection):
    """Feed cross-attention's queries a mix. Stream: "cross_q" (T, B, C) above the first layer."""

    def read(self, s: Stream) -> tuple[Tensor, Stream]:
        s = dict(s)
        return self.norm(s.pop("cross_q")), s
