"""Attention with its insides open: for variants that touch the projections, the scores or the heads.

Runs a fairseq ``MultiheadAttention`` (its weights, its decoding cache in fairseq's own layout) with places where a
variant may step in. Everything else about a layer keeps using the module itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.generation.kv_cache import BeamCache
from fairseq_residuals.performance.activation_recompute import can_be_made_again

Edit = Callable[[Tensor], Tensor]


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
    incremental_state: Any = None,
    static_kv: bool = False,
    need_weights: bool = False,
    need_head_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """
    Args:
        attn: fairseq's module.
        query: (T, B, C).
        key, value: (S, B, C of the keys).
        edit_query, edit_key, edit_value: (positions, B, C) -> the same, the projection with its bias, before the
            heads are split; what the decoding cache holds is edited.
        edit_scores: (B, H, T, S) -> (B, H, T, S), before masks and softmax; while a beam is searched, T is the
            hypotheses of a sentence and S all that is kept of it.
        edit_heads: (T, B, C) -> (T, B, C), the heads' outputs side by side, before the output projection.

    The rest as ``MultiheadAttention.forward``; ``incremental_state`` may be a :class:`BeamCache`.

    Returns:
        output (T, B, C), and if asked for the weights (B, T, S), or (H, B, T, S) per head.
    """
    positions, batch, _ = query.shape

    def split(x: Tensor, edit: Edit | None) -> Tensor:
        x = x if edit is None else edit(x)
        return x.unflatten(-1, (attn.num_heads, attn.head_dim)).permute(1, 2, 0, 3)

    def side_by_side(heads: Tensor) -> Tensor:
        return heads.permute(2, 0, 1, 3).reshape(positions, batch, -1)

    q = split(attn.q_proj(query), edit_query) * attn.scaling
    beam = incremental_state if isinstance(incremental_state, BeamCache) else None
    cache = {} if incremental_state is None or beam is not None else attn._get_input_buffer(incremental_state)
    if beam is not None:
        if static_kv and attn in beam.memories:
            k, v, attn_mask = beam.memories[attn]
        else:
            k, v = split(attn.k_proj(key), edit_key), split(attn.v_proj(value), edit_value)
            keep = partial(beam.remember, padding_mask=key_padding_mask) if static_kv else beam.extend
            k, v, attn_mask = keep(attn, k, v)
        q, key_padding_mask = beam.as_positions(q), None
    elif static_kv and "prev_key" in cache:
        k, v, key_padding_mask = cache["prev_key"], cache["prev_value"], cache["prev_key_padding_mask"]
    else:
        if static_kv and attn.beam_size > 1 and batch == key.size(1):
            # all hypotheses of a sentence look at the same keys: one copy serves them
            key, value = key[:, :: attn.beam_size], value[:, :: attn.beam_size]
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[:: attn.beam_size]
        k, v = split(attn.k_proj(key), edit_key), split(attn.v_proj(value), edit_value)
        if "prev_key" in cache:
            k, v = torch.cat([cache["prev_key"], k], 2), torch.cat([cache["prev_value"], v], 2)
            key_padding_mask = attn._append_prev_key_padding_mask(
                key_padding_mask, cache["prev_key_padding_mask"], k.size(0), k.size(2), static_kv
            )
        if incremental_state is not None:
            cache = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask}
            attn._set_input_buffer(incremental_state, cache)

    # sentences, hypotheses per sentence, heads, positions
    q = q.unflatten(0, (k.size(0), -1))
    scores = (q @ k.unsqueeze(1).transpose(-1, -2)).flatten(0, 1)
    if edit_scores is not None:
        scores = edit_scores(scores)
    if attn_mask is not None:
        scores = scores + attn_mask
    if key_padding_mask is not None:
        mask = key_padding_mask.bool()[:, None, None, None].expand(-1, q.size(1), -1, -1, -1).flatten(0, 1)
        # not infinity: a query that may see padding alone, such as padding on the left, is to have some weights
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32)
    probs = attn.dropout_module(weights.type_as(scores)).unflatten(0, (k.size(0), -1))
    heads = (probs @ v.unsqueeze(1)).flatten(0, 1)
    if beam is not None:
        heads, weights = beam.as_rows(heads), beam.as_rows(weights)
    heads = side_by_side(heads)
    if edit_heads is not None:
        heads = edit_heads(heads)
    elif getattr(attn, "fast_on_cpu", False) and heads.requires_grad and not torch.compiler.is_compiling():
        factors = probs.detach(), v.detach().unsqueeze(1)
        heads = can_be_made_again(heads, lambda: side_by_side(torch.matmul(*factors).flatten(0, 1)))
    out = attn.out_proj(heads)
    if not need_weights and not need_head_weights:
        return out, None
    weights = weights.transpose(0, 1)
    return out, weights if need_head_weights else weights.mean(0)


def open_trains_faster(attn: Any, query: Tensor, key: Tensor) -> bool:
    """Whether training takes longer by PyTorch's fused attention, which fairseq's module calls: on a CPU, where its
    backward pass is slow. In bf16, in which fairseq itself does not train there, it is left by itself; in single
    precision, where a run of fairseq's is to be continued bit for bit, by ``--fast-on-cpu``. Between more positions it
    is faster, and spares the memory of the weights.

    Args:
        attn: fairseq's module.
        query, key: (T, B, C), (S, B, C of the keys).
    """
    if not attn.training or query.device.type != "cpu" or max(len(query), len(key)) > 128:
        return False
    return query.dtype == torch.bfloat16 or (query.dtype == torch.float32 and getattr(attn, "fast_on_cpu", False))
