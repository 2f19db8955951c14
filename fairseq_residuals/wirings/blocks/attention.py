"""Multi-head attention on PyTorch alone: fairseq's module, and what decoders of today have in its place.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2. As it is by default, it has the parameters, the random
draws and the results of facebookresearch/fairseq@3d262bb (``modules/multihead_attention.py``): a checkpoint of one is a
checkpoint of the other, the same seed draws the same weights, and on a CPU the results are equal bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.wirings.core.attention import additive, open_attention, share_heads, split_heads
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.torch_private import has_hooks


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: queries and keys are turned by angles that grow with the position.

    Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", Eq. 34; as in LLaMA and GPT-NeoX,
    channels i and i + half of a head turn together.
    """

    base: float = 1e4
    """The base of the geometric series of rates."""

    def table(self, heads: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, (T, half of a head's channels), in single precision at least.

        Args:
            heads: (N, H, T, channels of a head).
            first: number of the first position.
        """
        channels, device = heads.size(-1), heads.device
        dtype = torch.promote_types(heads.dtype, torch.float32)
        rates = self.base ** (-torch.arange(0, channels, 2, dtype=dtype, device=device) / channels)
        positions = torch.arange(first, first + heads.size(-2), dtype=dtype, device=device)
        angles = torch.outer(positions, rates)
        return angles.cos(), angles.sin()

    def __call__(self, heads: Tensor, first: int = 0) -> Tensor:
        """Turn queries or keys, (N, H, T, channels of a head) -> the same.

        Args:
            first: number of the first position.
        """
        cos, sin = (value.to(heads.dtype) for value in self.table(heads, first))
        a, b = heads.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class MultiheadAttention(nn.Module):
    """Attend from queries to keys and values, head by head.

    What needs the insides of attention (edits, a KV cache) has it call :func:`.open_attention`.
    """

    beam_size = 1
    """Number of neighbours in a batch with the same memory; fairseq's beam search sets it on fairseq's modules."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kdim: int | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        bias: bool = True,
        rotary: Rotary | None = None,
    ) -> None:
        """Draw the weights as fairseq does: Xavier uniform, for queries, keys and values of one width by 1/sqrt(2).

        Args:
            embed_dim: channels C of queries and output, divisible by ``num_heads``.
            num_heads: heads H.
            kdim: channels of keys and values; None: ``embed_dim``.
            dropout: probability with which a weight of attention is dropped in training.
            kv_heads: heads of keys and values, which divide ``num_heads`` (Ainslie et al. 2023, "GQA"); None: H.
            bias: whether the projections have biases.
            rotary: positions, of queries and keys from one sequence.

        Raises:
            UserError: the heads do not divide the channels, or those of keys and values do not divide the heads.
        """
        if embed_dim % num_heads:
            raise UserError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}")
        kv_heads = num_heads if kv_heads is None else kv_heads
        if kv_heads < 1 or num_heads % kv_heads:
            raise UserError(f"kv_heads={kv_heads} does not divide the {num_heads} heads of queries")
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout_module = nn.Dropout(dropout)
        # the order of fairseq's draws
        self.k_proj = nn.Linear(self.kdim, kv_heads * self.head_dim, bias)
        self.v_proj = nn.Linear(self.kdim, kv_heads * self.head_dim, bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias)
        gain = 1 / math.sqrt(2) if self.kdim == embed_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)
        self.rotary = rotary
        self.q_norm: nn.Module | None = None
        """A norm of each head's queries, below rotary positions (Henry et al. 2020, "Query-Key Normalization")."""
        self.k_norm: nn.Module | None = None

    def place_heads(self, heads: Tensor, norm: nn.Module | None, first: int) -> Tensor:
        """Return queries or keys as they are compared, (N, H, T, channels of a head) -> the same: normed, turned.

        Args:
            norm: :attr:`q_norm` or :attr:`k_norm`.
            first: number of the first position.
        """
        heads = heads if norm is None else norm(heads)
        return heads if self.rotary is None else self.rotary(heads, first)

    def is_stock(self) -> bool:
        """Return whether weights and biases of fairseq's shapes say all: no adapter, hook, norm, or other numbers."""
        projections = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        # the class of a module stays where accelerate replaces its forward, or torchao quantizes its weight
        plain = all(
            type(p) is nn.Linear
            and type(p.weight) in (nn.Parameter, Tensor)
            and p.bias is not None
            and "forward" not in vars(p)
            and not has_hooks(p)
            for p in projections
        )
        return plain and self.rotary is None and self.q_norm is None and self.k_proj.out_features == self.embed_dim

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        static_kv: bool = False,
        need_weights: bool = False,
        need_head_weights: bool = False,
        **opening: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, by one of PyTorch's fused kernels where neither weights are asked for nor the keys a fixed memory.

        Args:
            query: (T, B, C).
            key, value: (S, B, ``kdim``).
            key_padding_mask: (B, S), True at padding.
            attn_mask: (T, S), added to the scores, or True where it hides.
            static_kv: whether keys and values are a memory that never changes, for which fairseq has no fused kernel.
                (Adapters, hooks and quantized linears in place of a projection are run as modules, also without it.)
            need_weights: return the mean weights of the heads.
            need_head_weights: return the weights of each head, which fairseq's fused kernel averages all the same.
            opening: what else :func:`.open_attention` takes, which then attends.

        Returns:
            output (T, B, C); weights (B, T, S), of a fixed memory per head (H, B, T, S), or None.
        """
        stock = self.is_stock()
        if opening or static_kv or (not stock and (need_weights or need_head_weights)):
            opening |= {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask, "static_kv": static_kv}
            opening |= {"need_weights": need_weights, "need_head_weights": need_head_weights}
            return open_attention(self, query, key, value, **opening)
        if not stock:
            return self._fused(query, key, value, key_padding_mask, attn_mask), None
        return F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            None,
            torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]),
            None,
            None,
            False,
            self.dropout_module.p,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.dropout_module.training,
            # masks of two types are deprecated
            key_padding_mask=additive(key_padding_mask, query),
            need_weights=need_weights or need_head_weights,
            attn_mask=additive(attn_mask, query),
            use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
        )

    def _fused(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        """Run :func:`.open_attention` by PyTorch's fused kernel: (T, B, C) -> (T, B, C)."""
        q, k, v = (
            split_heads(projection(x), self.head_dim)
            for projection, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        q, k = self.place_heads(q, self.q_norm, 0), self.place_heads(k, self.k_norm, 0)
        mask = additive(attn_mask, q)
        if padding is not None:
            # not infinity: a query that may see padding alone is to have some weights
            mask = q.new_zeros(1, 1) if mask is None else mask
            mask = mask.masked_fill(padding.bool()[:, None, None], torch.finfo(q.dtype).min)
        heads = F.scaled_dot_product_attention(
            q,
            share_heads(k, self.num_heads),
            share_heads(v, self.num_heads),
            mask,
            dropout_p=self.dropout_module.p if self.dropout_module.training else 0.0,
            scale=self.scaling,
        )
        return self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))  # type: ignore[no-any-return]
