"""Word dropout: in training, whole words of the input are missing, their positions are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class WordDropoutEmbedding(nn.Embedding):
    """An embedding of which, in training, each word is zero with probability ``p``; the others are not rescaled.

    Takase and Kiyono 2021, "Rethinking Perturbations in Encoder-Decoders for Fast Training", as the 100-layer models of
    B2T use it. Written after takase/b2t_connection@c8e2ad4 (``fairseq/models/transformer.py``): what is dropped is what
    the embedding returns, before it is scaled and its position added; padding and the end of a sentence are dropped
    like words.
    """

    def __init__(self, plain: nn.Embedding, p: float, *, keep_first: bool) -> None:
        """
        Args:
            plain: an embedding, which stays as it is; both have one weight.
            p: from 0 up to, but not including, 1.
            keep_first: never drop position 0, where a decoder finds its start symbol.
        """
        super().__init__(plain.num_embeddings, plain.embedding_dim, plain.padding_idx, _weight=plain.weight.data)
        self.weight = plain.weight
        self.p = p
        self.keep_first = keep_first

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, C)."""
        words = super().forward(tokens)
        if not self.training:
            return words
        dropped = torch.rand(tokens.shape, device=tokens.device) < self.p
        if self.keep_first:
            dropped = F.pad(dropped[:, 1:], (1, 0))
        return words.masked_fill(dropped.unsqueeze(-1), 0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, word_dropout={self.p}"


def drop_words(owner: Any, p: float, *, keep_first: bool) -> None:
    """Gives a fairseq encoder or decoder an embedding with word dropout. Nothing else that has the same weight changes:
    the other stack, the output projection, the names in a checkpoint."""
    owner.embed_tokens = WordDropoutEmbedding(owner.embed_tokens, p, keep_first=keep_first)
