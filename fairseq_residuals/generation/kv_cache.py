"""What attention keeps of the words so far while a beam is searched; stands where fairseq's incremental state does.

fairseq's state is a copy of every key and value per hypothesis, reordered and made longer by a copy at every word. Here
a word's keys and values are written once, to the place (position, hypothesis) of its sentence. The hypotheses of a
sentence attend to all of its places together, as if they were its positions, and a mask, the same in all layers,
leaves to each the places of its own past. So a word moves nothing but that mask, and the memory of the encoder is kept
once per sentence. One price: if one hypothesis overflows, what is not a number reaches the others of its sentence, as
what is masked is multiplied by 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

GROWTH = 32
"""Positions that there is room for at first; doubled whenever there are more."""


class Kept(NamedTuple):
    """Of one cross-attention. Keys and values: (sentences, heads, S, channels of a head); mask: (sentences, 1, 1, S)
    to be added to the scores, or None."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None


class BeamCache(dict[str, Any]):
    """B sentences with K hypotheses each; a row is one hypothesis, sentence by sentence.

    The first word has one hypothesis per sentence, since all begin alike. A dictionary since fairseq's decoder hands
    one through; it stays empty.
    """

    def __init__(self, sentences: int, beam: int, device: torch.device) -> None:
        super().__init__()
        self.sentences, self.beam = sentences, beam
        self.words: dict[Any, Tensor] = {}
        self.memories: dict[Any, Kept] = {}
        # of which hypothesis of its sentence a row's past is, (rows, positions)
        self.past = torch.zeros(sentences, 1, dtype=torch.long, device=device)
        self.mask: Tensor | None = None

    def advance(self, parents: Tensor, sentences: Tensor | None) -> None:
        """The next word begins.

        Args:
            parents: (rows), which row each one goes on from, as the rows are numbered once sentences have left.
            sentences: those that stay, where any leave.
        """
        if self.past.size(1) == 1 and len(self.past) == self.sentences:
            self.past = self.past.repeat_interleave(self.beam, 0)
        if sentences is not None:
            self.past = self.past.unflatten(0, (self.sentences, -1))[sentences].flatten(0, 1)
            self._leave(sentences)
            self.sentences = len(sentences)
        own = torch.arange(self.beam, device=parents.device).repeat(self.sentences)
        self.past = torch.cat([self.past[parents], own[:, None]], 1)
        self.mask = None

    def _leave(self, sentences: Tensor) -> None:
        """Of keys and values, those of ``sentences`` stay."""
        self.words = {attn: kept[:, sentences] for attn, kept in self.words.items()}
        self.memories = {
            attn: Kept(*[None if kept is None else kept[sentences] for kept in memory])  # type: ignore[arg-type]
            for attn, memory in self.memories.items()
        }

    def as_positions(self, x: Tensor) -> Tensor:
        """(rows, heads, 1, C) -> (sentences, heads, hypotheses, C)."""
        return x.squeeze(2).unflatten(0, (self.sentences, -1)).transpose(1, 2)

    def as_rows(self, x: Tensor) -> Tensor:
        """(sentences, heads, hypotheses, C) -> (rows, heads, 1, C)."""
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)

    def extend(self, attn: Any, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keeps the newest word's keys and values, (rows, heads, 1, channels of a head), for the module ``attn``.

        Returns:
            Those of all words, (B, heads, positions * K, channels of a head), and what leaves to each hypothesis its
            own, to be added to the scores, (B, 1, hypotheses, positions * K).
        """
        keys, values = self.as_positions(keys), self.as_positions(values)
        position = self.past.size(1) - 1
        kept = self.words.get(attn)
        if kept is None or kept.size(3) == position:
            # zeros, as what is masked is multiplied by 0 all the same
            size = (2, *keys.shape[:2], max(GROWTH, 2 * position), self.beam, keys.size(-1))
            larger = keys.new_zeros(size)
            if kept is not None:
                larger[:, :, :, :position] = kept
            kept = self.words[attn] = larger
        kept[0, :, :, position, : keys.size(2)] = keys
        kept[1, :, :, position, : keys.size(2)] = values
        if self.mask is None:
            others = self.past[:, :, None] != torch.arange(self.beam, device=keys.device)
            mask = torch.zeros_like(others, dtype=keys.dtype).masked_fill(others, -torch.inf)
            self.mask = mask.view(self.sentences, 1, keys.size(2), -1)
        so_far = kept[:, :, :, : position + 1].flatten(3, 4)
        return so_far[0], so_far[1], self.mask

    def remember(self, attn: Any, keys: Tensor, values: Tensor, padding_mask: Tensor | None) -> Kept:
        """Keeps the keys and values of the encoder's output for ``attn``; ``padding_mask`` (sentences, S)."""
        mask = None
        if padding_mask is not None:
            mask = torch.zeros_like(padding_mask, dtype=keys.dtype).masked_fill(padding_mask.bool(), -torch.inf)
            mask = mask[:, None, None]
        self.memories[attn] = Kept(keys.contiguous(), values.contiguous(), mask)
        return self.memories[attn]
