"""One Transformer layer: attention, cross-attention, FFN. All wiring is its connections'."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.wirings.core.attention import KVCache
from fairseq_residuals.wirings.core.base import Connection, Kind, Site, Stream, SubLayer, Variant
from fairseq_residuals.wirings.core.depth_mup import branch_multiplier
from fairseq_residuals.wirings.core.gpas import ActivationScaling
from fairseq_residuals.wirings.core.packing import Packing
from fairseq_residuals.wirings.core.value_residual import ValueResidual

FAIRSEQ_NORMS: dict[Kind, str] = {
    "self": "self_attn_layer_norm",
    "cross": "encoder_attn_layer_norm",
    "ffn": "final_layer_norm",
}
CONNECTIONS: dict[Kind, str] = {
    "self": "self_attn_connection",
    "cross": "encoder_attn_connection",
    "ffn": "ffn_connection",
}


@dataclass(frozen=True)
class Context:
    """Input of every layer of a pass beside the stream: masks, the encoder's output, the cache of decoding.

    Shapes: padding masks (B, positions) True at padding; ``self_attn_mask`` (T, T) added to the scores;
    ``memory`` (S, B, C of the encoder).
    """

    padding_mask: Tensor | None = None
    self_attn_mask: Tensor | None = None
    memory: Tensor | None = None
    memory_padding_mask: Tensor | None = None
    cache: KVCache | None = None
    need_attn: bool = False
    need_head_weights: bool = False
    packing: Packing | None = None
    """The layout of positions whose sentences are end to end; the masks are then those of sentences side by side."""
    memory_packing: Packing | None = None


class Layer(nn.Module):
    """The sub-layers of one layer, each with a connection, which has the name that :data:`CONNECTIONS` gives it."""

    kinds: list[Kind]
    """The kinds of the sub-layers, in the order in which they run."""
    self_attn: Any
    encoder_attn: Any
    value_residual: ValueResidual | None
    gpas: ActivationScaling | None

    def sites(self, variant: Variant, layer: int, kinds: Iterable[Kind]) -> dict[Kind, Site]:
        """Return where the connections sit, and keep which sub-layers there are and how they are run.

        Args:
            layer: which of the variant's layers this is.
            kinds: the sub-layers that there are to wire; a variant may take the place of the FFN.
        """
        self.kinds = [kind for kind in kinds if variant.has_ffn or kind != "ffn"]
        # the same for all layers, which therefore share what is compiled
        self.evaluate = variant.evaluate
        base = {f.name: getattr(variant.shape, f.name) for f in fields(variant.shape)}
        return {
            kind: Site(**base, kind=kind, layer=layer, index=i, n_sub=len(self.kinds))
            for i, kind in enumerate(self.kinds)
        }

    def forward(self, s: Stream, context: Any) -> tuple[Stream, Tensor | None]:
        """Run the sub-layers, once unless the variant says otherwise.

        Returns:
            the stream after this layer, and the cross-attention weights (heads or none, B, T, S) where asked for.
        """
        return self.evaluate(partial(self.run_sublayers, context=context), s)

    def run_sublayers(self, s: Stream, context: Any) -> tuple[Stream, Tensor | None]:
        """Run each sub-layer once; the results are those of :meth:`forward`."""
        raise NotImplementedError(f"{type(self).__name__} does not say how its sub-layers run")

    def add_options(self, variant: Variant, layer: int) -> None:
        """Make the modules that options of every variant ask for, of layer ``layer`` of the variant."""
        mixing, gates = variant.config.value_residual, variant.config.gpas
        self.value_residual = None if mixing == "none" else ValueResidual(mixing, layer, variant.shape.depth)
        self.gpas = None if gates == "none" else ActivationScaling()

    def connect(self, variant: Variant, site: Site) -> Connection:
        """Return a new connection for ``site``, whose branches are multiplied as ``depth_mup`` asks."""
        connection = variant.connect(site)
        connection.multiplier *= branch_multiplier(variant.config, variant.shape.depth)
        return connection

    def run(self, kind: Kind, s: Stream, sublayer: SubLayer) -> tuple[Stream, Tensor | None]:
        """Run a sub-layer in its connection: the stream after it, attention weights or None.

        With the option ``gpas``, "x" of the stream is scaled where the connection's kind of sum has it scaled.
        """
        connection, gpas = self.connection(kind), self.gpas
        if gpas is None or connection.summation not in ("pre", "post"):
            return connection(s, sublayer)  # type: ignore[no-any-return]
        if connection.summation == "pre":
            s, weights = connection(s, sublayer)
            return s | {"x": gpas(s["x"])}, weights

        def scale_residual(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            y, weights, s = sublayer(h, s)
            return y, weights, s | {"x": gpas(s["x"])}

        return connection(s, scale_residual)  # type: ignore[no-any-return]

    def connection(self, kind: Kind) -> Connection:
        """Return the connection of a sub-layer."""
        return getattr(self, CONNECTIONS[kind])  # type: ignore[no-any-return]

    def connections(self) -> list[Connection]:
        """Return the connections, in the order in which their sub-layers run."""
        return [self.connection(kind) for kind in self.kinds]


class ResidualLayer(Layer):
    """Takes over the sub-layers of a Transformer layer that somebody else built, and gives each a connection."""

    need_attn = False
    """Whether weights of cross-attention are returned in evaluation, also where nobody asks for them."""

    def __init__(self, built: Any, variant: Variant, layer: int) -> None:
        """Take the sub-layers of a layer over.

        Args:
            built: a layer with fairseq's names for its sub-layers, which move here.
            layer: which of the variant's layers this is.
        """
        super().__init__()
        present = {"self": True, "cross": bool(getattr(built, "encoder_attn", None)), "ffn": True}
        sites = self.sites(variant, layer, [kind for kind in FAIRSEQ_NORMS if present[kind]])
        # registered in fairseq's order, which is the order of an optimizer's state
        self.self_attn: nn.Module = built.self_attn
        self.self_attn_connection = self.connect(variant, sites["self"])
        self.add_options(variant, layer)
        self.encoder_attn: nn.Module | None = getattr(built, "encoder_attn", None)
        if "cross" in sites:
            self.encoder_attn_connection = self.connect(variant, sites["cross"])
        if "ffn" in sites:
            self.fc1: nn.Module = built.fc1
            self.fc2: nn.Module = built.fc2
            self.ffn_connection = self.connect(variant, sites["ffn"])
            self.activation_fn = built.activation_fn
            self.activation_dropout_module: nn.Module = built.activation_dropout_module
        self.dropout_module: nn.Module = built.dropout_module

    def run_sublayers(self, s: Stream, context: Context) -> tuple[Stream, Tensor | None]:
        """Run each sub-layer once (:meth:`Layer.run_sublayers`)."""

        def self_attention(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            kept: Stream = {}
            edits = {} if self.value_residual is None else self.value_residual.edits(s, kept)
            key, value = keys_and_values(h, s)
            y, weights, s = self.self_attn_connection.attend(
                self.self_attn,
                h,
                key,
                value,
                s,
                key_padding_mask=context.padding_mask,
                cache=context.cache,
                need_weights=False,
                attn_mask=context.self_attn_mask,
                **packed_rows(packing=context.packing, key_packing=context.packing),
                **edits,
            )
            return self.dropout_module(self.self_attn_connection.outer(y)), weights, s | kept

        def cross_attention(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            assert self.encoder_attn is not None and context.memory is not None
            y, weights, s = self.encoder_attn_connection.attend(
                self.encoder_attn,
                h,
                context.memory,
                context.memory,
                s,
                key_padding_mask=context.memory_padding_mask,
                cache=context.cache,
                static_kv=True,
                need_weights=context.need_attn or (not self.training and self.need_attn),
                need_head_weights=context.need_head_weights,
                **packed_rows(packing=context.packing, key_packing=context.memory_packing),
            )
            return self.dropout_module(self.encoder_attn_connection.outer(y)), weights, s

        def feed_forward(h: Tensor, s: Stream) -> tuple[Tensor, Tensor | None, Stream]:
            # positions in one dimension: what fc1 returns is then no view, so that an activation in place is cheap
            inner = self.activation_fn(self.fc1(h.flatten(0, 1))).unflatten(0, h.shape[:2])
            h = self.activation_dropout_module(inner)
            y = self.fc2(self.ffn_connection.inner(h))
            return self.dropout_module(self.ffn_connection.outer(y)), None, s

        attn = None
        s, _ = self.run("self", s, self_attention)
        if self.encoder_attn is not None and context.memory is not None:
            s, attn = self.run("cross", s, cross_attention)
        if "ffn" in self.kinds:
            s, _ = self.run("ffn", s, feed_forward)
        return s, attn


def keys_and_values(h: Tensor, s: Stream) -> tuple[Tensor, Tensor]:
    """Return what keys and values of self-attention are made of: ``h``, unless the stream has something else."""
    return s.get("key", h), s.get("value", h)


def packed_rows(**packings: Packing | None) -> dict[str, Packing]:
    """Return those arguments of attention that say of a row how it is packed."""
    return {name: packing for name, packing in packings.items() if packing is not None}
