"""Multi-head attention on PyTorch alone, with the parameters, random draws and results of fairseq's module.

Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2. Written after facebookresearch/fairseq@3d262bb
(``modules/multihead_attention.py``): a checkpoint of one is a checkpoint of the other, the same seed draws the same
weights, and on a CPU the results are equal bit for bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_residuals.wirings.core.attention import open_attention
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.torch_private import has_hooks


class MultiheadAttention(nn.Module):
    """Attend from queries to keys and values, head by head.

    What needs the insides of attention (edits, a KV cache) calls :func:`.open_attention` with this module.
    """

    beam_size = 1
    """How many neighbours in a batch bring the same memory; fairseq's beam search sets it on fairseq's modules."""

    def __init__(self, embed_dim: int, num_heads: int, *, kdim: int | None = None, dropout: float = 0.0) -> None:
        """Draw the weights as fairseq does: Xavier uniform, for queries, keys and values of one width by 1/sqrt(2).

        Args:
            embed_dim: channels C of queries and output, divisible by ``num_heads``.
            num_heads: heads H.
            kdim: channels of keys and values; None: ``embed_dim``.
            dropout: probability with which a weight of attention is dropped in training.

        Raises:
            UserError: the heads do not divide the channels.
        """
        if embed_dim % num_heads:
            raise UserError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}")
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout_module = nn.Dropout(dropout)
        # the order of fairseq's draws
        self.k_proj = nn.Linear(self.kdim, embed_dim)
        self.v_proj = nn.Linear(self.kdim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        gain = 1 / math.sqrt(2) if self.kdim == embed_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(projection.weight, gain=gain)
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def is_plain(self) -> bool:
        """Return whether weights and biases say all of the projections: no adapter, no hook, no other numbers."""
        projections = (self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        return all(type(p) is nn.Linear and p.bias is not None and not has_hooks(p) for p in projections)

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
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, by PyTorch's fused kernel where the keys are no fixed memory and the projections are plain.

        Args:
            query: (T, B, C).
            key, value: (S, B, ``kdim``).
            key_padding_mask: (B, S), True at padding.
            attn_mask: (T, S), added to the scores.
            static_kv: whether keys and values are a memory that never changes, for which fairseq has no fused kernel.
                (Adapters, hooks and quantized linears in place of a projection are run as modules, also without it.)
            need_weights: return the mean weights of the heads.
            need_head_weights: return the weights of each head, which the fused kernel averages all the same.

        Returns:
            output (T, B, C); weights (B, T, S), of a fixed memory per head (H, B, T, S), or None.
        """
        if static_kv or not self.is_plain():
            return open_attention(
                self,
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                attn_mask=attn_mask,
                static_kv=static_kv,
                need_weights=need_weights,
                need_head_weights=need_head_weights,
            )
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
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights or need_head_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
        )
