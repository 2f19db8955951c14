"""Calls of attention: by the module itself, or with its insides open for what touches projections, scores or heads.

:func:`run_attention` is what a connection does unless another :data:`AttentionBackend` was attached to it: in models of
the plugin ``CPUAttention`` (wirings/speed/cpu.py) and for packed rows ``VarlenAttention`` (plugin/speed); ``wrap`` and
``rewire`` have their own. :func:`open_attention` computes by the weights of a module, fairseq's ``MultiheadAttention``
or one with the same names, and has places where a variant may step in. What is kept between the steps of decoding is
a :class:`KVCache`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.packing import Packing

Edit = Callable[[Tensor], Tensor]
AttentionBackend = Callable[..., tuple[Tensor, Tensor | None]]
"""A function with the arguments of :func:`run_attention`, and its results."""


class KeysValues(NamedTuple):
    """Keys and values that queries attend to, of N groups of queries: a sequence, or the hypotheses of a sentence."""

    keys: Tensor
    """(N, H, S, channels of a head)"""
    values: Tensor
    """(N, H, S, channels of a head)"""
    attn_mask: Tensor | None
    """Mask that is added to the scores, to whose shape it broadcasts."""
    padding_mask: Tensor | None
    """(N, S), True at padding."""


class KVCache(Protocol):
    """Keys and values of the steps so far, while a decoder runs one position at a time."""

    incremental_state: dict[str, Any] | None = None
    """Argument of an attention module's forward; None where attention must be open to use this cache."""

    def copies(self, attn: Any) -> int:
        """Return how many neighbours in a batch bring the same memory: its first copy serves them all."""
        return 1

    def recall(self, attn: Any) -> KeysValues | None:
        """Return what ``attn`` attends to of a memory that never changes; None before :meth:`remember`."""

    def remember(self, attn: Any, memory: KeysValues) -> KeysValues:
        """Keep a memory that never changes, and return what ``attn`` attends to."""

    def extend(self, attn: Any, new: KeysValues) -> KeysValues:
        """Append new positions, and return all that ``attn`` attends to."""

    def group(self, queries: Tensor) -> Tensor:
        """(rows, H, T, channels of a head) -> (groups, H, queries of a group, channels of a head); a row is a group."""
        return queries

    def ungroup(self, x: Tensor) -> Tensor:
        """Undo :meth:`group`."""
        return x


def weigh_values(probs: Tensor, values: Tensor, cache: KVCache | None = None) -> Tensor:
    """(N, groups, H, T, S), (N, H, S, channels of a head) -> (T, B, C): the outputs of the heads, side by side."""
    heads = (probs @ values.unsqueeze(1)).flatten(0, 1)
    if cache is not None:
        heads = cache.ungroup(heads)
    return heads.permute(2, 0, 1, 3).flatten(2)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(positions, N, channels of all heads) -> (N, H, positions, channels of a head)."""
    return x.unflatten(-1, (-1, head_dim)).permute(1, 2, 0, 3)


def share_heads(x: Tensor, heads: int) -> Tensor:
    """(N, heads of keys and values, S, channels of a head) -> (N, ``heads``, S, ...), neighbours sharing one."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), 1)


def needs_opening(cache: KVCache | None, arguments: dict[str, Any]) -> bool:
    """Return whether the module itself cannot do it: an edit (also None), a packed row, a cache of another kind."""
    opening = ("edit_", "packing", "key_packing")
    return (cache is not None and cache.incremental_state is None) or any(a.startswith(opening) for a in arguments)


def additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Return a mask that is added to scores; True in one of booleans hides, as in ``torch.nn.MultiheadAttention``."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)


def run_attention(
    attn: Any, query: Tensor, key: Tensor, value: Tensor, *, cache: KVCache | None = None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Call the module as it is, or :func:`open_attention` where an edit or the cache asks for it.

    Args:
        kwargs: those of the module's forward, and the edits of :func:`open_attention`.

    Returns:
        output (T, B, C), weights or None.
    """
    if needs_opening(cache, kwargs):
        return opened(attn)(query, key, value, cache=cache, **kwargs)
    if cache is not None:
        kwargs["incremental_state"] = cache.incremental_state
    return attn(query=query, key=key, value=value, **kwargs)  # type: ignore[no-any-return]


def opened(attn: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return :func:`open_attention` of ``attn``: the library's module opens itself, so that hooks on it run."""
    return attn if hasattr(attn, "place_heads") else partial(open_attention, attn)


def open_attention(
    attn: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    edit_query: Edit | None = None,
    edit_key: Edit | None = None,
    edit_value: Edit | None = None,
    edit_scores: Edit | None = None,
    edit_heads: Edit | None = None,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    cache: KVCache | None = None,
    static_kv: bool = False,
    need_weights: bool = False,
    need_head_weights: bool = False,
    weigh: Callable[[Tensor, Tensor, KVCache | None], Tensor] = weigh_values,
    packing: Packing | None = None,
    key_packing: Packing | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention step by step.

    Args:
        attn: the module whose weights, scaling and dropout are used.
        query: (T, B, C).
        key, value: (S, B, C of the keys).
        edit_query, edit_key, edit_value: (positions, B, C) -> the same, the projection with its bias, before the
            heads are split; what the cache holds is edited.
        edit_scores: (B, H, T, S) -> (B, H, T, S), before masks and softmax; while a beam is searched, T is the
            hypotheses of a sentence and S all that is kept of it.
        edit_heads: (T, B, C) -> (T, B, C), the heads' outputs side by side, before the output projection.
        key_padding_mask: (B, S), True at padding.
        attn_mask: (T, S), added to the scores, or True where it hides.
        static_kv: whether keys and values are a memory that never changes (and has no ``attn_mask``).
        weigh: :func:`weigh_values`, or what computes the same.
        packing: of the queries, where these are a packed row (total, 1, C). Projections and their edits then run on
            the row, scores and masks are those of the sentences side by side.
        key_packing: the same of keys and values.

    Returns:
        output (T, B, C), and if asked for the weights (B, T, S), or (H, B, T, S) per head.
    """

    def split(x: Tensor, edit: Edit | None, packed: Packing | None) -> Tensor:
        x = x if edit is None else edit(x)
        return split_heads(x if packed is None else packed.unpack(x), attn.head_dim)

    # the library's module may have norms of queries and keys, and rotary positions
    place = getattr(attn, "place_heads", None)
    first = 0 if cache is None or static_kv or place is None else cache.positions  # type: ignore[attr-defined]
    q = split(attn.q_proj(query), edit_query, packing)
    q = (q if place is None else place(q, attn.q_norm, first)) * attn.scaling
    attended = cache.recall(attn) if cache is not None and static_kv else None
    if attended is None:
        copies = attn.beam_size if cache is None else cache.copies(attn)
        if static_kv and copies > 1 and query.size(1) == key.size(1):
            key, value = key[:, ::copies], value[:, ::copies]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[::copies]
        k = split(attn.k_proj(key), edit_key, key_packing)
        k = k if place is None else place(k, attn.k_norm, first)
        v = split(attn.v_proj(value), edit_value, key_packing)
        attended = KeysValues(k, v, attn_mask, key_padding_mask)
        if cache is not None:
            attended = (cache.remember if static_kv else cache.extend)(attn, attended)
    k, v, attn_mask, key_padding_mask = attended
    k, v = share_heads(k, attn.num_heads), share_heads(v, attn.num_heads)
    if cache is not None:
        q = cache.group(q)

    # sentences, hypotheses per sentence, heads, positions
    q = q.unflatten(0, (k.size(0), -1))
    scores = (q @ k.unsqueeze(1).transpose(-1, -2)).flatten(0, 1)
    if edit_scores is not None:
        scores = edit_scores(scores)
    if (hidden := additive(attn_mask, scores)) is not None:
        scores = scores + hidden
    if key_padding_mask is not None:
        mask = key_padding_mask.bool()[:, None, None, None].expand(-1, q.size(1), -1, -1, -1).flatten(0, 1)
        # not infinity: a query that may see padding alone, such as padding on the left, is to have some weights
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    probs = attn.dropout_module(weights.type_as(scores)).unflatten(0, (k.size(0), -1))
    heads = weigh(probs, v, cache)
    heads = heads if packing is None else packing.pack(heads)
    out = attn.out_proj(heads if edit_heads is None else edit_heads(heads))
    if not need_weights and not need_head_weights:
        return out, None
    weights = (weights if cache is None else cache.ungroup(weights)).transpose(0, 1)
    return out, weights if need_head_weights else weights.mean(0)
