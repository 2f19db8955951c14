"""The cache of a search whose words are CUDA graphs: its memory stays where it is.

Hypotheses attend to all places that there is room for, of which a mask leaves them their past, and the place that is
written is told by a number on the device. Sentences that leave are overwritten by those that stay; what the others
would have said is computed, and not looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_residuals.plugin.search.kv_cache import BeamCache
from fairseq_residuals.wirings.core.attention import KeysValues

NOBODY = -1
"""Of which hypothesis the past is at places that are not written yet."""


class FixedBeamCache(BeamCache):
    """A :class:`BeamCache` that, from the second word on, is of one size for many words."""

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
        """For how many words."""
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
