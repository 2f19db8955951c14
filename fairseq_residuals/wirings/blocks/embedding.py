"""Token embeddings and positions on PyTorch alone, with fairseq's names, random draws and numbers."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.packing import Packing


def sinusoids(positions: int, dim: int, padding_idx: int) -> Tensor:
    """Return sines and cosines of every position, (positions, dim), zeros at ``padding_idx``.

    Vaswani et al. 2017, section 3.5, with the sines in the first half of the channels and the cosines in the second,
    as in tensor2tensor and fairseq.
    """
    half = dim // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(positions, dtype=torch.float).unsqueeze(1) * rates.unsqueeze(0)
    table = nn.functional.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, dim % 2))
    table[padding_idx] = 0
    return table


class TokenEmbedding(nn.Module):
    """What is below a stack: scaled embeddings of tokens plus those of their positions, with dropout."""

    def __init__(
        self,
        words: int,
        dim: int,
        *,
        padding_idx: int = 1,
        positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal",
        max_positions: int = 1024,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        """Draw the tables from N(0, 1/dim).

        Args:
            words: size of the vocabulary.
            dim: channels C.
            padding_idx: the token that pads sentences, embedded as zeros.
            positions: how they are embedded; a table of numbers that are not trained, of ones that are, or not at all.
            max_positions: the longest sentence, with its padding.
            scale: factor on the embeddings of tokens; None: sqrt(dim).
            dropout: on the sum.

        Raises:
            UserError: sinusoids of so few channels do not exist.
        """
        if positions == "sinusoidal" and dim < 4:
            raise UserError(f"sinusoidal positions need at least 4 channels, not {dim}")
        super().__init__()
        self.max_positions = max_positions
        self.scale = math.sqrt(dim) if scale is None else scale
        self.embed_tokens = _table(words, dim, padding_idx)
        self.padding_idx = padding_idx
        # fairseq numbers positions from padding_idx + 1
        rows = max_positions + padding_idx + 1
        self.embed_positions = _table(rows, dim, padding_idx) if positions == "learned" else None
        self.sinusoids: Tensor | None
        self.register_buffer(
            "sinusoids", sinusoids(rows, dim, padding_idx) if positions == "sinusoidal" else None, persistent=False
        )
        self.register_load_state_dict_post_hook(TokenEmbedding.reset_buffers)
        self.dropout_module = nn.Dropout(dropout)

    def reset_buffers(self, *_: Any) -> None:
        """Make what no checkpoint holds, after loading: the model may have been built without memory."""
        if self.sinusoids is not None:
            positions, dim = self.sinusoids.shape
            self.sinusoids = sinusoids(positions, dim, self.padding_idx).to(self.embed_tokens.weight.device)

    def forward(self, tokens: Tensor, *, cache: DecoderCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
        """Embed tokens.

        Args:
            tokens: (B, T); packed (1, total).
            cache: of the decoder that reads the result; positions go on from it.
            cu_seqlens: of packed sentences, each of which begins at the first position.

        Returns:
            (T, B, C)

        Raises:
            UserError: a sentence has more positions than there is room for.
        """
        packing = None if cu_seqlens is None else Packing(cu_seqlens)
        longest = tokens.size(1) + (0 if cache is None else cache.positions) if packing is None else packing.longest
        if longest > self.max_positions:
            raise UserError(f"a sentence has {longest} positions, and max_positions is {self.max_positions}")
        x = self.scale * self.embed_tokens(tokens)
        numbers = self._positions(tokens.eq(self.padding_idx), cache, packing)
        if self.embed_positions is not None:
            x = x + self.embed_positions(numbers)
        elif self.sinusoids is not None:
            x = x + self.sinusoids[numbers].to(x.dtype)
        return self.dropout_module(x).transpose(0, 1)

    def _positions(self, padding: Tensor, cache: DecoderCache | None, packing: Packing | None) -> Tensor:
        """(B, T), counted from ``padding_idx`` + 1 over what is not padding, and ``padding_idx`` there."""
        if packing is not None:
            return (packing.positions + self.padding_idx + 1).expand_as(padding)
        real = ~padding
        before: Tensor | int = 0
        if cache is not None:
            before = cache.positions if cache.padding is None else (~cache.padding).sum(1, keepdim=True)
        return (real.cumsum(1) + before) * real + self.padding_idx


def _table(rows: int, dim: int, padding_idx: int) -> nn.Embedding:
    table = nn.Embedding(rows, dim, padding_idx=padding_idx)
    nn.init.normal_(table.weight, std=dim**-0.5)
    nn.init.zeros_(table.weight[padding_idx])
    return table
