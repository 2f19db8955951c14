"""``varlen_attn`` in plain PyTorch, and how to let a CPU take the way of a GPU that has it."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairseq_residuals.plugin.speed import varlen_attention


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
) -> Tensor:
    """Attend sentence by sentence; (positions, heads, channels of a head)."""
    outputs = []
    for (start, end), (key_start, key_end) in zip(
        pairwise(cu_seq_q.tolist()), pairwise(cu_seq_k.tolist()), strict=True
    ):
        assert end - start <= max_q and key_end - key_start <= max_k
        assert (end > start) == (key_end > key_start), "a kernel may write anything where there are no keys"
        q, k, v = (x.transpose(0, 1) for x in (query[start:end], key[key_start:key_end], value[key_start:key_end]))
        causal = window_size == (-1, 0)
        outputs.append(scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale).transpose(0, 1))
    out = torch.cat(outputs)
    assert len(out) == len(query), "the kernel leaves what is in no sentence as it is"
    return out


def instead_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen_attention, "why_not", lambda attn, dtype, device: "")
    attend = partial(varlen_attention.attend_packed, kernel=varlen_attn)
    monkeypatch.setattr(varlen_attention, "attend_packed", attend)
