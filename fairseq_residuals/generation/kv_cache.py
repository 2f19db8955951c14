"""The :class:`~fairseq_residuals.core.attention.KVCache` of a beam search.

fairseq's state is a copy of every key and value per hypothesis, reordered and made longer by a copy at every word. Here
a word's keys and values are written once, to the place (position, hypothesis) of its sentence. The hypotheses of a
sentence attend to all of its places together, as if they were its positions, and a mask, the same in all layers,
leaves to each the places of its own past. So a word moves nothing but that mask, and the memory of the encoder is kept
once per sentence. One price: if one hypothesis overflows, what is not a number reaches the others of its sentence, as
what is masked is multiplied by 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.core.attention import KeysValues
from fairseq_residuals.core.stack import Pass, Stack

GROWTH = 32
"""Positions that there is room for at first; doubled whenever there are more."""


class BeamCache:
    """B sentences with K hypotheses each; a row is one hypothesis, sentence by sentence, and a sentence is a group.

    The first word has one hypothesis per sentence, since all begin alike.
    """

    incremental_state = None
    """No attention module can use this cache by itself."""

    def __init__(self, sentences: int, beam: int, device: torch.device) -> None:
        self.sentences, self.beam = sentences, beam
        self.words: dict[Any, Tensor] = {}
        self.memories: dict[Any, KeysValues] = {}
        # of which hypothesis of its sentence a row's past is, (rows, positions)
        self.past = torch.zeros(sentences, 1, dtype=torch.long, device=device)
        self.mask: Tensor | None = None

    def advance(self, parents: Tensor, sentences: Tensor | None) -> None:
        """Begin the next word.

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
        """Keep the keys and values of ``sentences`` alone."""
        self.words = {attn: kept[:, sentences] for attn, kept in self.words.items()}
        self.memories = {
            attn: KeysValues(*[None if x is None else x[sentences] for x in memory])  # type: ignore[arg-type]
            for attn, memory in self.memories.items()
        }

    def start_pass(self, stack: Stack) -> Pass:
        """Start a pass like any other (:meth:`KVCache.start_pass`)."""
        return Pass(stack)

    def copies(self, attn: Any) -> int:
        """Return how often a row is repeated (:meth:`KVCache.copies`): the encoder's output comes once per sentence."""
        return 1

    def group(self, queries: Tensor) -> Tensor:
        """(rows, heads, 1, C) -> (sentences, heads, hypotheses, C)."""
        return queries.squeeze(2).unflatten(0, (self.sentences, -1)).transpose(1, 2)

    def ungroup(self, x: Tensor) -> Tensor:
        """(sentences, heads, hypotheses, C) -> (rows, heads, 1, C)."""
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)

    def extend(self, attn: Any, new: KeysValues) -> KeysValues:
        """Keep the newest word's keys and values, (rows, heads, 1, channels of a head), for the module ``attn``.

        Returns:
            Those of all words, (B, heads, positions * K, channels of a head); the mask leaves to each hypothesis its
            own, (B, 1, hypotheses, positions * K).
        """
        keys, values = self.group(new.keys), self.group(new.values)
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
        return KeysValues(so_far[0], so_far[1], self.mask, None)

    def recall(self, attn: Any) -> KeysValues | None:
        """Return what was remembered (:meth:`KVCache.recall`)."""
        return self.memories.get(attn)

    def remember(self, attn: Any, memory: KeysValues) -> KeysValues:
        """Remember keys and values (:meth:`KVCache.remember`), the padding as a mask (sentences, 1, 1, S)."""
        keys, values, _, padding = memory
        mask = None
        if padding is not None:
            mask = torch.zeros_like(padding, dtype=keys.dtype).masked_fill(padding.bool(), -torch.inf)
            mask = mask[:, None, None]
        self.memories[attn] = KeysValues(keys.contiguous(), values.contiguous(), mask, None)
        return self.memories[attn]
