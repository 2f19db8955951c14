"""Attention within the sentences of a packed row by PyTorch's ``varlen_attn``, which knows no padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.plugin.torch_private import varlen_attention
from fairseq_residuals.wirings.core.attention import AttentionBackend, Edit
from fairseq_residuals.wirings.core.base import Connection
from fairseq_residuals.wirings.core.packing import Packing

LEAST_CAPABILITY = (8, 0)
"""Least compute capability of a GPU: the kernels are FlashAttention's."""


@dataclass(frozen=True)
class VarlenAttention:
    """An attention backend: packed rows by ``varlen_attn`` where that serves, the rest as ``inner`` does."""

    inner: AttentionBackend

    def __call__(
        self, attn: Any, query: Tensor, key: Tensor, value: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Run attention as :func:`~fairseq_residuals.wirings.core.attention.run_attention` does."""
        rows = kwargs.get("packing") is not None and kwargs.get("key_packing") is not None
        asks = kwargs.get("need_weights") or kwargs.get("need_head_weights") or kwargs.get("cache") is not None
        if not rows or asks or "edit_scores" in kwargs or why_not(attn, query.dtype, query.device):
            return self.inner(attn, query, key, value, **kwargs)
        names = ("packing", "key_packing", "edit_query", "edit_key", "edit_value", "edit_heads")
        given: dict[str, Any] = {name: kwargs.get(name) for name in names}
        return attend_packed(attn, query, key, value, causal=kwargs.get("attn_mask") is not None, **given), None


def why_not(attn: Any, dtype: torch.dtype, device: torch.device) -> str:
    """Return why ``varlen_attn`` does not serve a module of attention for rows of a type; empty where it does."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return "varlen_attn needs an Nvidia GPU of Ampere's generation or newer"
    if dtype not in (torch.bfloat16, torch.float16):
        return "varlen_attn needs --bf16 or --fp16"
    if attn.head_dim % 8 or attn.head_dim > 256:
        return "varlen_attn needs heads of a multiple of 8 channels, at most 256"
    if attn.training and attn.dropout_module.p > 0:
        return "varlen_attn has no --attention-dropout"
    return "this PyTorch has no varlen_attn" if varlen_attention() is None else ""


def attend_packed(
    attn: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool,
    packing: Packing,
    key_packing: Packing,
    edit_query: Edit | None = None,
    edit_key: Edit | None = None,
    edit_value: Edit | None = None,
    edit_heads: Edit | None = None,
    kernel: Callable[..., Any] | None = None,
) -> Tensor:
    """Attend within the sentences of packed rows; the arguments are those of ``open_attention``.

    Args:
        query: (total, 1, C).
        key, value: (total of the keys, 1, C of the keys).
        causal: whether a position sees none of the later ones.
        kernel: what computes the same as ``torch.nn.attention.varlen.varlen_attn``, which is the default.

    Returns:
        output (total, 1, C).
    """

    def heads_of(x: Tensor, edit: Edit | None) -> Tensor:
        x = x if edit is None else edit(x)
        return x.squeeze(1).unflatten(-1, (attn.num_heads, attn.head_dim))

    kernel = kernel or varlen_attention()
    assert kernel is not None
    out: Tensor = kernel(
        heads_of(attn.q_proj(query), edit_query),
        heads_of(attn.k_proj(key), edit_key),
        heads_of(attn.v_proj(value), edit_value),
        packing.cu_seqlens,
        key_packing.cu_seqlens,
        packing.longest,
        key_packing.longest,
        scale=attn.scaling,
        window_size=(-1, 0) if causal else (-1, -1),
    )
    heads = out.flatten(1).unsqueeze(1)
    return attn.out_proj(heads if edit_heads is None else edit_heads(heads))  # type: ignore[no-any-return]


def attach(model: nn.Module) -> None:
    """Let the connections of a model attend by it, outermost of what runs attention."""
    for module in model.modules():
        if isinstance(module, Connection):
            module.attention = VarlenAttention(module.attention)
