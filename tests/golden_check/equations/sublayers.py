"""The sub-layers of a layer, written out, with their intermediate results open to edits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.layer import Context

Inside = Callable[[str, Tensor], Tensor]
"""The name of an intermediate result and its value; returns what becomes of it."""
INSIDE = {"SA": ("q", "k", "v", "S", "o"), "CA": ("q", "k", "v", "S", "o"), "FFN": ("a",)}
"""Queries, keys, values (T, B, C) after projection; scores (B, H, T, S) before masks; outputs of the heads side by side
(T, B, C); of the FFN what its activation gives (T, B, F)."""


def run_sublayer(layer: Any, kind: str, h: Tensor, context: Context, inside: Inside) -> Tensor:
    """Return what the sub-layer makes of ``h`` (T, B, C), before its dropout."""
    if kind == "FFN":
        return layer.fc2(inside("a", layer.activation_fn(layer.fc1(h))))  # type: ignore[no-any-return]
    if kind == "SA":
        return _attention(layer.self_attn, h, h, context.self_attn_mask, context.padding_mask, inside)
    assert context.memory is not None
    return _attention(layer.encoder_attn, h, context.memory, None, context.memory_padding_mask, inside)


def _attention(
    attn: Any, h: Tensor, memory: Tensor, mask: Tensor | None, padding: Tensor | None, inside: Inside
) -> Tensor:
    """softmax(q k^T / sqrt(channels of a head) + mask) v for every head, then the output's projection."""
    q, k, v = inside("q", attn.q_proj(h)), inside("k", attn.k_proj(memory)), inside("v", attn.v_proj(memory))
    q, k, v = (x.unflatten(-1, (attn.num_heads, -1)) for x in (q, k, v))
    scores = inside("S", torch.einsum("tbhc,sbhc->bhts", q, k) / q.size(-1) ** 0.5)
    if mask is not None:
        scores = scores + mask
    if padding is not None:
        scores = scores.masked_fill(padding[:, None, None], torch.finfo(scores.dtype).min)
    heads = torch.einsum("bhts,sbhc->tbhc", scores.softmax(-1), v)
    return attn.out_proj(inside("o", heads.flatten(-2)))  # type: ignore[no-any-return]
