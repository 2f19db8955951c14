"""A Transformer's encoder or decoder on PyTorch alone: sub-layers with fairseq's names, and their stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.attention import MultiheadAttention, Rotary
from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.blocks.feed_forward import FeedForward
from fairseq_residuals.wirings.core.base import Connection, StackShape, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.packing import Packing
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring


@dataclass(frozen=True, kw_only=True)
class LayerSettings:
    """The sub-layers of a stack's layers, as plain values."""

    dim: int
    """Channels of the stream."""
    heads: int
    """Heads of attention, which divide the channels."""
    ffn_dim: int
    """Channels that the FFN's second matrix reads."""
    activation: str = "relu"
    """One of :data:`.ACTIVATIONS`."""
    dropout: float = 0.0
    """Probability of dropping a channel of what a sub-layer gives."""
    attention_dropout: float = 0.0
    """Probability of dropping a weight of attention."""
    activation_dropout: float = 0.0
    """Probability of dropping an inner channel of the FFN."""
    layerdrop: float = 0.0
    """Probability of skipping a layer in training (Fan et al. 2020)."""
    rotary: float = 0.0
    """Base of the rates of rotary positions in self-attention; 0: none."""
    kv_heads: int = 0
    """Heads of keys and values; 0: as many as of queries."""
    qk_norm: bool = False
    """Whether each head's queries and keys are normed, by norms of the wiring's kind without biases."""
    bias: bool = True
    """Whether linear maps have biases."""
    window: int = 0
    """Number of positions on either side that self-attention sees, a position's own included; 0: all."""


class SubLayers(nn.Module):
    """The sub-layers of one layer, before a wiring takes them over; fairseq's names, and its order of random draws."""

    def __init__(self, settings: LayerSettings, memory_dim: int | None) -> None:
        """Draw the weights.

        Args:
            memory_dim: channels of what cross-attention reads; None: a layer without it.
        """
        super().__init__()
        s = settings
        attention = partial(
            MultiheadAttention, s.dim, s.heads, dropout=s.attention_dropout, kv_heads=s.kv_heads or None, bias=s.bias
        )
        self.self_attn = attention(rotary=Rotary(s.rotary) if s.rotary else None)
        self.encoder_attn = None if memory_dim is None else attention(kdim=memory_dim)
        ffn = FeedForward(s.dim, s.ffn_dim, s.activation, s.activation_dropout, bias=s.bias)  # type: ignore[arg-type]
        self.fc1, self.fc2 = ffn.fc1, ffn.fc2
        self.activation_fn = ffn.activation_fn
        self.activation_dropout_module = ffn.activation_dropout_module
        self.dropout_module = nn.Dropout(s.dropout)


class TransformerStack(Stack):
    """An encoder or decoder between its embeddings and its output projection."""

    def __init__(
        self,
        built: Sequence[SubLayers],
        variant: Variant,
        shape: StackShape,
        *,
        layerdrop: float = 0.0,
        batch_first: bool = False,
        window: int = 0,
    ) -> None:
        """Take the sub-layers over; see :class:`.Stack`.

        Args:
            batch_first: whether ``x``, ``memory`` and what is returned have sentences before positions.
            window: as :attr:`LayerSettings.window`.
        """
        super().__init__(list(built), variant, shape, layerdrop=layerdrop)
        self.causal = shape.stack == "decoder"
        self.batch_first = batch_first
        self.window = window

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        *,
        padding_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        cache: DecoderCache | None = None,
        cu_seqlens: Tensor | None = None,
        memory_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Run all layers. A decoder masks the future itself.

        With ``batch_first``, the first two dimensions of ``x``, of ``memory`` and of the output change places; masks
        and lengths stay as they are.

        Args:
            x: (T, B, C), embeddings; packed (total, 1, C).
            padding_mask: (B, T), True at padding; None where nothing is padded.
            memory: (S, B, C of the memory), the encoder's output, for a decoder of a pair; packed (total, 1, C).
            memory_padding_mask: (B, S).
            cache: of the positions before ``x``, which it is given to keep.
            cu_seqlens: (n + 1), cumulative lengths of the n sentences that are packed in ``x``, from 0 to the total.
            memory_cu_seqlens: the same of ``memory``.

        Returns:
            (T, B, C), shaped as ``x``.

        Raises:
            UserError: inputs that this stack cannot have, or that contradict each other.
        """
        self._check(x, memory, cache, cu_seqlens, padding_mask)
        if memory_padding_mask is not None and (memory is None or memory_cu_seqlens is not None):
            raise UserError("memory_padding_mask is of a memory that is not packed; padding_mask is of x")
        if self.batch_first and (cu_seqlens is not None or memory_cu_seqlens is not None):
            raise UserError("packed sentences are end to end, in no batch: build the stack with batch_first=False")
        if self.batch_first:
            x, memory = x.transpose(0, 1), None if memory is None else memory.transpose(0, 1)
        if cache is not None and cache.rows not in (None, x.size(1)):
            raise UserError(f"the cache holds {cache.rows} sentences, and x has {x.size(1)}; {self._order()}")
        packing = None if cu_seqlens is None else Packing(cu_seqlens)
        memory_packing = None if memory_cu_seqlens is None else Packing(memory_cu_seqlens)
        for name, row, packed in (("x", x, packing), ("memory", memory, memory_packing)):
            if packed is not None and (row is None or row.shape[:2] != (packed.total, 1)):
                shape = None if row is None else tuple(row.shape)
                raise UserError(f"a packed {name} must be ({packed.total}, 1, C), as its lengths say, not {shape}")
        new, sentences, past = x.size(0), x.size(1), 0
        if packing is not None:
            new, sentences, padding_mask = packing.longest, packing.sentences, packing.padding_mask
        else:
            _check_mask("padding_mask", padding_mask, x, self._order())
        if memory_packing is not None:
            memory_padding_mask = memory_packing.padding_mask
            if memory_packing.sentences != sentences:
                raise UserError(f"memory has {memory_packing.sentences} packed sentences, and x has {sentences}")
        elif memory is not None and not (cache and cache.memories):
            self._check_memory(sentences, memory, memory_padding_mask)
        if cache is not None:
            cache.belong_to(self)
            past = cache.positions
            padding_mask = cache.with_past(padding_mask, x.size(1), new, x.device)
        context = Context(
            padding_mask=padding_mask,
            self_attn_mask=self._mask(x, past, new),
            memory=memory,
            memory_padding_mask=memory_padding_mask,
            cache=cache,
            packing=packing,
            memory_packing=memory_packing,
        )
        out, _ = super().forward(x, context)
        if cache is not None:
            cache.advance(new, padding_mask)
        return out.transpose(0, 1) if self.batch_first else out

    def _order(self) -> str:
        order = "(sentences, positions, C)" if self.batch_first else "(positions, sentences, C)"
        return f"with batch_first={self.batch_first} x and memory are {order}"

    def _mask(self, x: Tensor, past: int, new: int) -> Tensor | None:
        """Return (new, past + new), -inf where a position does not see another; None where it sees all."""
        if not self.window and (not self.causal or (past and new == 1)):
            return None
        # of comparisons alone, which every format of graphs can hold
        other = torch.arange(past + new, device=x.device)
        own = other[past:, None]
        hidden = other > own if self.causal else torch.zeros_like(other > own)
        if self.window:
            hidden = hidden | ((other - own).abs() >= self.window)
        return torch.zeros(new, past + new, dtype=x.dtype, device=x.device).masked_fill(hidden, -torch.inf)

    def _check(self, x: Tensor, memory: Any, cache: Any, cu_seqlens: Any, padding_mask: Any) -> None:
        if x.dim() != 3 or x.size(-1) != self.shape.dim:
            first = "sentences, positions" if self.batch_first else "positions, sentences"
            raise UserError(f"x must be ({first}, {self.shape.dim}), not {tuple(x.shape)}")
        reads_memory = self.causal and self.shape.cross
        if reads_memory and memory is None:
            raise UserError(
                "a decoder of a pair needs memory, its encoder's output; language_model is the task without"
            )
        if memory is not None and not reads_memory:
            raise UserError("only a decoder of a pair reads a memory; this stack has no cross-attention")
        if cache is not None and not self.causal:
            raise UserError("an encoder's positions see later ones, so it cannot run from a cache")
        if cu_seqlens is not None and (cache is not None or padding_mask is not None):
            raise UserError("packed input has neither padding nor a cache; give cu_seqlens alone")

    def _check_memory(self, sentences: int, memory: Tensor, memory_padding_mask: Tensor | None) -> None:
        channels = self[0].encoder_attn.kdim
        # of an encoder that makes one memory for each layer (transparent_attention), as wide as all of them
        widths = (channels, channels * len(self))
        if memory.dim() != 3 or memory.size(1) != sentences or memory.size(-1) not in widths:
            raise UserError(
                f"memory must be (positions, sentences, channels), here (S, {sentences}, {channels}), not"
                f" {tuple(memory.shape)}; with batch_first=True the first two change places"
            )
        _check_mask("memory_padding_mask", memory_padding_mask, memory, self._order())


def build_layers(
    settings: LayerSettings, wiring: Wiring, shape: StackShape, memory_dim: int | None, *, batch_first: bool = False
) -> TransformerStack:
    """Build wired layers, their weights drawn as fairseq draws them.

    Args:
        memory_dim: channels of what cross-attention reads; None: layers without it.

    Raises:
        UserError: the wiring has no meaning in such a stack, or not with such sub-layers.
    """
    # before the wiring draws numbers of its own, as under fairseq
    built = [SubLayers(settings, memory_dim) for _ in range(shape.depth)]
    shape = replace(shape, keys_dim=built[0].self_attn.k_proj.out_features)
    stack = TransformerStack(
        built,
        wiring.build(shape),
        shape,
        layerdrop=settings.layerdrop,
        batch_first=batch_first,
        window=settings.window,
    )
    for variant, layers in stack.segments() if settings.qk_norm else ():
        for attention in (m for m in layers.modules() if isinstance(m, MultiheadAttention)):
            norms = (variant.shape.new_norm(attention.head_dim, bias=False) for _ in range(2))
            attention.q_norm, attention.k_norm = norms
    _check_norms(settings, wiring, stack)
    return stack


def _check_norms(settings: LayerSettings, wiring: Wiring, stack: Stack) -> None:
    """Check that a wiring with norms of its own on queries and keys can have such sub-layers.

    Raises:
        UserError: it cannot.
    """
    connections = [module for module in stack.modules() if isinstance(module, Connection)]
    if settings.qk_norm and any(getattr(c, "q_norm", None) or hasattr(c, "query_gain") for c in connections):
        raise UserError(f"wiring {wiring.name!r} norms queries and keys itself: leave out qk_norm")


def _check_mask(name: str, mask: Tensor | None, x: Tensor, order: str) -> None:
    """Compare a mask (B, T) with what it is of, (T, B, C).

    Raises:
        UserError: they do not fit, or the mask is of numbers, whose sense nobody can tell.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise UserError(f"{name} must be of torch.bool, True at padding, not {mask.dtype}; 1 at words is mask == 0")
    if mask is not None and mask.shape != (x.size(1), x.size(0)):
        raise UserError(
            f"{name} must be (sentences, positions), here ({x.size(1)}, {x.size(0)}), not {tuple(mask.shape)}; {order}"
        )
