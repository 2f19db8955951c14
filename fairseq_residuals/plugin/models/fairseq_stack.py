"""Stacks where fairseq keeps its lists of layers: its loops over layers, its caches and its hooks run unmodified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.attention import KeysValues, KVCache
from fairseq_residuals.wirings.core.layer import FAIRSEQ_NORMS, Context, ResidualLayer
from fairseq_residuals.wirings.core.packing import Packing
from fairseq_residuals.wirings.core.stack import Pass, Stack

KV_CACHE = "kv_cache"
"""The key under which an incremental state holds a :class:`KVCache` that is to be used in its place."""


class FairseqLayer(ResidualLayer):
    """A layer with what fairseq asks of it beside running it.

    Not a subclass of fairseq's layers: in 0.12.2 these carry a second, dead copy of every weight, and switch in
    evaluation to a fused Post-LN kernel that ignores any other wiring.
    """

    # fairseq's encoder loop asks its first layer for this before it considers the fused kernel
    load_to_BT = False
    need_attn = True

    def make_generation_fast_(self, need_attn: bool = False, **kwargs: Any) -> None:
        """Return attention weights only if an alignment is to be printed; fairseq's call before generation."""
        self.need_attn = need_attn

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Rename the norms of checkpoints from before fairseq 0.6 (``layer_norms.0``), in place."""
        for i, kind in enumerate(self.kinds):
            for parameter in ("weight", "bias"):
                old = f"{name}.layer_norms.{i}.{parameter}"
                if old in state_dict:
                    state_dict[f"{name}.{FAIRSEQ_NORMS[kind]}.{parameter}"] = state_dict.pop(old)


@dataclass
class PackedSides:
    """Packing of one model's input while somebody else's code runs the model; None: it is padded.

    What is in the model and has to know holds this object, for that code hands nothing on.
    """

    encoder: Packing | None = None
    decoder: Packing | None = None

    @contextmanager
    def running(self, encoder: Packing | None, decoder: Packing | None) -> Iterator[None]:
        """Say how the input is packed that runs within this context."""
        before = self.encoder, self.decoder
        self.encoder, self.decoder = encoder, decoder
        try:
            yield
        finally:
            self.encoder, self.decoder = before


class FairseqStack(Stack):
    """A stack that fairseq's loops over layers run.

    Iterating it starts a pass along the depth and yields one callable per layer with the signature of fairseq's layers:
    the first opens the stream, the last closes it, and the pass, not a module, holds the stream in between.
    """

    layer_class = FairseqLayer
    call_layer: Callable[..., Any]
    """Runs a layer as part of a pass, ``call_layer(pass, i, x, ...)``, with the signature of fairseq's layers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the sub-layers over; see :class:`.Stack`."""
        super().__init__(*args, **kwargs)
        self.sides = PackedSides()

    def __iter__(self) -> Iterator[Any]:
        current = Pass(self)
        return iter([partial(self.call_layer, current, i) for i in range(len(self))])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the whole depth; return what the last layer returns to fairseq's loop."""
        out: Any = x
        for layer in self:
            out = layer(x, *args, **kwargs)
            x = out[0] if isinstance(out, tuple) else out
        return out


class EncoderStack(FairseqStack):
    def call_layer(self, current: Pass, i: int, x: Tensor, encoder_padding_mask: Tensor | None = None) -> Tensor:
        """Run with the signature of fairseq's encoder layers: (T, B, C), mask (B, T) -> (T, B, C)."""
        packing = self.sides.encoder
        padding = encoder_padding_mask if packing is None else packing.padding_mask
        return current.run(i, x, Context(padding_mask=padding, packing=packing))[0]


class DecoderStack(FairseqStack):
    def call_layer(
        self,
        current: Pass,
        i: int,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Run with the signature of fairseq's decoder layers: (T, B, C), ... -> (T, B, C), weights, None."""
        sides = self.sides
        if sides.decoder is not None:
            # fairseq asks the last layer in every pass; weights of a row would be none that anybody knows
            need_attn = need_head_weights = False
            self_attn_padding_mask = sides.decoder.padding_mask
            self_attn_mask = sides.decoder.future_mask(x.dtype)
        if sides.encoder is not None:
            encoder_padding_mask = sides.encoder.padding_mask
        context = Context(
            padding_mask=self_attn_padding_mask,
            self_attn_mask=self_attn_mask,
            memory=encoder_out,
            memory_padding_mask=encoder_padding_mask,
            packing=sides.decoder,
            memory_packing=sides.encoder,
            cache=None if incremental_state is None else cache_of(incremental_state),
            need_attn=need_attn or need_head_weights,
            need_head_weights=need_head_weights,
        )
        return *current.run(i, x, context), None


def cache_of(incremental_state: dict[str, Any]) -> KVCache:
    """Return the cache that an incremental state holds, or is."""
    cache: KVCache | None = incremental_state.get(KV_CACHE)
    return FairseqCache(incremental_state) if cache is None else cache


class FairseqCache(KVCache):
    """fairseq's incremental state as a :class:`KVCache`: a buffer per attention module, reordered by fairseq's search.

    Its attention modules can use it by themselves; open attention keeps the same in it.
    """

    def __init__(self, incremental_state: dict[str, Any]) -> None:
        self.incremental_state = incremental_state

    def copies(self, attn: Any) -> int:
        """Return how often a row is repeated (:meth:`KVCache.copies`): fairseq tells modules how wide its beam is."""
        return attn.beam_size  # type: ignore[no-any-return]

    def recall(self, attn: Any) -> KeysValues | None:
        """Return what was remembered (:meth:`KVCache.recall`)."""
        buffer = attn._get_input_buffer(self.incremental_state)
        if "prev_key" not in buffer:
            return None
        return KeysValues(buffer["prev_key"], buffer["prev_value"], None, buffer["prev_key_padding_mask"])

    def remember(self, attn: Any, memory: KeysValues) -> KeysValues:
        """Remember keys and values (:meth:`KVCache.remember`)."""
        buffer = {"prev_key": memory.keys, "prev_value": memory.values, "prev_key_padding_mask": memory.padding_mask}
        attn._set_input_buffer(self.incremental_state, buffer)
        return memory

    def extend(self, attn: Any, new: KeysValues) -> KeysValues:
        """Add keys and values of the newest words (:meth:`KVCache.extend`)."""
        before = self.recall(attn)
        if before is not None:
            keys, values = (torch.cat(pair, 2) for pair in zip(before[:2], new[:2], strict=True))
            padding = attn._append_prev_key_padding_mask(
                new.padding_mask, before.padding_mask, keys.size(0), keys.size(2), False
            )
            new = KeysValues(keys, values, new.attn_mask, padding)
        return self.remember(attn, new)
