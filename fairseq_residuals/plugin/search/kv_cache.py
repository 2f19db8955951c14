"""The :class:`~fairseq_residuals.wirings.core.attention.KVCache` of a beam search.

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

from fairseq_residuals.plugin.models.fairseq_stack import KV_CACHE
from fairseq_residuals.wirings.core.attention import KeysValues, KVCache

GROWTH = 32
"""Positions that there is room for at first; doubled whenever there are more."""


class BeamCache(KVCache):
    """B sentences with K hypotheses each; a row is one hypothesis, sentence by sentence, and a sentence is a group.

    The first word has one hypothesis per sentence, since all begin alike.
    """

    def __init__(self, sentences: int, beam: int, device: torch.device) -> None:
        self.sentences, self.beam = sentences, beam
        self.words: dict[Any, Tensor] = {}
        self.memories: dict[Any, KeysValues] = {}
        # of which hypothesis of its sentence a row's past is, (rows, positions)
        self.past = torch.zeros(sentences, 1, dtype=torch.long, device=device)
        self.mask: Tensor | None = None
        self.attention: Tensor | None = None
        """(sentences, positions, K, S), what words attended to of the memory."""

    def advance(self, parents: Tensor) -> None:
        """Begin the next word.

        Args:
            parents: (rows), which row each one goes on from.
        """
        if self.past.size(1) == 1 and len(self.past) == self.sentences:
            self.past = self.past.repeat_interleave(self.beam, 0)
        self.past = torch.cat([self.past[parents], self._hypotheses(self.sentences)[:, None]], 1)
        self.mask = None

    def _hypotheses(self, sentences: int) -> Tensor:
        """Return which hypothesis of its sentence each row is."""
        return torch.arange(self.beam, device=self.past.device).repeat(sentences)

    def leave(self, sentences: Tensor) -> None:
        """Reduce all to ``sentences``, those that stay."""
        width = 1 if self.past.size(1) == 1 else self.beam
        self.past = self.keep(self.past.unflatten(0, (-1, width)), sentences).flatten(0, 1)
        self.words = {attn: self.keep(kept, sentences, dim=1) for attn, kept in self.words.items()}
        self.memories = {
            attn: KeysValues(*[None if x is None else self.keep(x, sentences) for x in memory])  # type: ignore[arg-type]
            for attn, memory in self.memories.items()
        }
        self.attention = None if self.attention is None else self.keep(self.attention, sentences)
        self.sentences = len(sentences)

    def keep(self, x: Tensor, sentences: Tensor, dim: int = 0) -> Tensor:
        """Return of ``x``, whose dimension ``dim`` is that of the sentences, those that stay."""
        return x.index_select(dim, sentences)

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
        size = [2, *keys.shape[:2], 0, self.beam, keys.size(-1)]
        kept = self.words[attn] = _with_room(self.words.get(attn), size, 3, position, keys)
        kept[0, :, :, position, : keys.size(2)] = keys
        kept[1, :, :, position, : keys.size(2)] = values
        so_far = kept[:, :, :, : position + 1].flatten(3, 4)
        return KeysValues(so_far[0], so_far[1], self._mask(keys), None)

    def _mask(self, like: Tensor) -> Tensor:
        """Return what leaves to each hypothesis its own past: the same in all layers."""
        if self.mask is None:
            others = self.past[:, :, None] != torch.arange(self.beam, device=like.device)
            mask = torch.zeros_like(others, dtype=like.dtype).masked_fill(others, -torch.inf)
            self.mask = mask.view(self.sentences, 1, like.size(2), -1)
        return self.mask

    def attend(self, weights: Tensor) -> None:
        """Keep what the newest word attended to of the memory, (rows, S)."""
        weights, position = weights.unflatten(0, (self.sentences, -1)), self.past.size(1) - 1
        size = [self.sentences, 0, self.beam, weights.size(-1)]
        self.attention = _with_room(self.attention, size, 1, position, weights)
        self.attention[:, position, : weights.size(1)] = weights

    def attended(self, words: int) -> Tensor | None:
        """Return what each hypothesis attended to (rows, S, words), where the decoder says."""
        if self.attention is None:
            return None
        kept = self.attention[: self.sentences, :words]
        past = self.past.unflatten(0, (len(self.attention), -1))[: self.sentences, :, :words]
        sentences, places = (torch.arange(n, device=past.device) for n in kept.shape[:2])
        weights = kept[sentences[:, None, None], places, past.expand(-1, self.beam, -1)]
        return weights.transpose(2, 3).flatten(0, 1)

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


def _with_room(kept: Tensor | None, size: list[int], dim: int, position: int, like: Tensor) -> Tensor:
    """Return ``kept``, larger in dimension ``dim`` where it has no place at ``position`` yet.

    What is new are zeros, as what is masked is multiplied by 0 all the same.
    """
    if kept is not None and kept.size(dim) > position:
        return kept
    size[dim] = max(GROWTH, 2 * position)
    larger = like.new_zeros(size)
    if kept is not None:
        larger.narrow(dim, 0, position).copy_(kept)
    return larger


def decode(decoder: Any, tokens: Tensor, memory: Any, cache: BeamCache) -> Tensor:
    """Decode the newest of words (rows, T), and keep in ``cache`` what the next ones need of it.

    Args:
        memory: the encoder's output, or None.

    Returns:
        What the output projection is fed (rows, 1, C).
    """
    features, extra = decoder(tokens, encoder_out=memory, features_only=True, incremental_state={KV_CACHE: cache})
    if extra and extra["attn"] and extra["attn"][0] is not None:
        cache.attend(extra["attn"][0][:, -1].float())
    return features  # type: ignore[no-any-return]


NOBODY = -1
"""Hypothesis to which the past belongs at places that are not written yet."""


class FixedBeamCache(BeamCache):
    """A :class:`BeamCache` whose words are CUDA graphs: from the second word on its memory stays where it is.

    Hypotheses attend to all places that there is room for, of which a mask leaves them their past, and a number on the
    device tells the place that is written. Sentences that leave are overwritten by those that stay; what the others
    would have said is computed, and not looked at.
    """

    def __init__(self, sentences: int, beam: int, device: torch.device) -> None:
        super().__init__(sentences, beam, device)
        self.most = sentences
        self.place: Tensor | None = None

    def begin(self, place: Tensor) -> None:
        """Take the size that stays; the first word has been kept.

        Args:
            place: (1), where the position of the newest word will stand.
        """
        self.place = place
        self.past = torch.full((self.most * self.beam, self.room), NOBODY, device=place.device)
        self.past[:, 0] = 0

    @property
    def room(self) -> int:
        """Number of words that there is room for."""
        return next(iter(self.words.values())).size(3)

    def make_room(self, position: int) -> bool:
        """Make room for a word at ``position``, and return whether the memory is another one from now on."""
        if position < self.room:
            return False
        self.words = {attn: torch.cat([kept, torch.zeros_like(kept)], 3) for attn, kept in self.words.items()}
        self.past = torch.cat([self.past, torch.full_like(self.past, NOBODY)], 1)
        if self.attention is not None:
            self.attention = torch.cat([self.attention, torch.zeros_like(self.attention)], 1)
        return True

    def keep(self, x: Tensor, sentences: Tensor, dim: int = 0) -> Tensor:
        """Write the sentences that stay over the first ones (:meth:`BeamCache.keep`)."""
        x.narrow(dim, 0, len(sentences)).copy_(x.index_select(dim, sentences))
        return x

    def advance(self, parents: Tensor) -> None:
        """Begin the next word (:meth:`BeamCache.advance`), of all sentences that there have been."""
        assert self.place is not None
        self.past.copy_(self.past.index_select(0, parents))
        self.past.index_copy_(1, self.place, self._hypotheses(self.most)[:, None])
        self.mask = None

    def extend(self, attn: object, new: KeysValues) -> KeysValues:
        if self.place is None:
            return super().extend(attn, new)
        kept = self.words[attn]
        newest = torch.stack([self.group(new.keys), self.group(new.values)])
        kept.index_copy_(3, self.place, newest.unsqueeze(3))
        keys, values = kept.flatten(3, 4)
        return KeysValues(keys, values, self._mask(newest[0]), None)

    def attend(self, weights: Tensor) -> None:
        """Keep what the newest word attended to (:meth:`BeamCache.attend`)."""
        if self.place is None:
            super().attend(weights)
        else:
            assert self.attention is not None
            self.attention.index_copy_(1, self.place, weights.unflatten(0, (self.sentences, -1)).unsqueeze(1))
