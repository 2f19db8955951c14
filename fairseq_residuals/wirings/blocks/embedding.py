"""Token embeddings and positions on PyTorch alone, with fairseq's names, random draws and numbers."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.blocks.cache import DecoderCache
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.packing import Packing

Positions = Literal["sinusoidal", "learned", "none"]


def sinusoids(numbers: Tensor, dim: int, padding_idx: int = 1) -> Tensor:
    """Return sines and cosines of numbered positions, (B, T) -> (B, T, dim), zeros at ``padding_idx``.

    Vaswani et al. 2017, section 3.5, with the sines in the first half of the channels and the cosines in the second,
    as in tensor2tensor and fairseq. They are computed where they are needed: no table has to be stored, or restored.
    """
    half = dim // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float, device=numbers.device) * -(math.log(10000) / (half - 1)))
    angles = numbers.float().unsqueeze(-1) * rates
    table = nn.functional.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, dim % 2))
    return table * numbers.ne(padding_idx).unsqueeze(-1)


class TokenEmbedding(nn.Module):
    """The embedding below a stack: scaled embeddings of tokens plus those of their positions, with dropout."""

    def __init__(
        self,
        words: int,
        dim: int,
        *,
        padding_idx: int = 1,
        positions: Positions = "sinusoidal",
        max_positions: int = 1024,
        scale: float | None = None,
        dropout: float = 0.0,
        input_dim: int | None = None,
        norm: bool = False,
    ) -> None:
        """Draw the tables from N(0, 1/channels).

        Args:
            words: size of the vocabulary.
            dim: channels C.
            padding_idx: the token that pads sentences, embedded as zeros; -1: there is none.
            positions: how they are embedded; a table of numbers that are not trained, of ones that are, or not at all.
            max_positions: the longest sentence, with its padding, where positions are learned.
            scale: factor on the embeddings of tokens; None: sqrt(dim).
            dropout: on the sum.
            input_dim: channels of the embeddings of tokens, which are projected where these are not C; None: C.
            norm: whether a LayerNorm follows the sum.

        Raises:
            UserError: sinusoids of so few channels do not exist.
        """
        if positions == "sinusoidal" and dim < 4:
            raise UserError(f"sinusoidal positions need at least 4 channels, not {dim}")
        super().__init__()
        self.max_positions, self.positions, self.padding_idx = max_positions, positions, padding_idx
        self.scale = math.sqrt(dim) if scale is None else scale
        self.embed_tokens = _table(words, input_dim or dim, padding_idx)
        self.project_in_dim = None if input_dim in (None, dim) else nn.Linear(input_dim or dim, dim, bias=False)
        # fairseq numbers positions from padding_idx + 1
        rows = max_positions + padding_idx + 1
        self.embed_positions = _table(rows, dim, padding_idx) if positions == "learned" else None
        self.layernorm_embedding = nn.LayerNorm(dim) if norm else None
        self.dropout_module = nn.Dropout(dropout)

    def padding_of(self, tokens: Tensor) -> Tensor | None:
        """Return where tokens are padding, (B, T) -> (B, T); None where no token pads."""
        return tokens.eq(self.padding_idx) if self.padding_idx >= 0 else None

    def embed(self, tokens: Tensor, *, cache: DecoderCache | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
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
        if self.embed_positions is not None and longest > self.max_positions:
            raise UserError(f"a sentence has {longest} positions, and max_positions is {self.max_positions}")
        x = self.scale * self.embed_tokens(tokens)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.positions != "none":
            numbers = self._numbers(tokens.eq(self.padding_idx), cache, packing)
            learned = self.embed_positions
            of_positions = sinusoids(numbers, x.size(-1), self.padding_idx) if learned is None else learned(numbers)
            x = x + of_positions.type_as(x)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)  # type: ignore[no-any-return]

    forward = embed

    def _numbers(self, padding: Tensor, cache: DecoderCache | None, packing: Packing | None) -> Tensor:
        """(B, T), counted from ``padding_idx`` + 1 over what is not padding, and ``padding_idx`` there."""
        if packing is not None:
            return (packing.positions + self.padding_idx + 1).expand_as(padding)
        real = ~padding
        before: Tensor | int = 0
        if cache is not None:
            before = cache.positions if cache.padding is None else (~cache.padding).sum(1, keepdim=True)
        return (real.cumsum(1) + before) * real + self.padding_idx


def _table(rows: int, dim: int, padding_idx: int) -> nn.Embedding:
    table = nn.Embedding(rows, dim, padding_idx=padding_idx if padding_idx >= 0 else None)
    nn.init.normal_(table.weight, std=dim**-0.5)
    if table.padding_idx is not None:
        nn.init.zeros_(table.weight[table.padding_idx])
    return table
