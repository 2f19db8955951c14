"""The KV cache of decoding: keys and values of the positions so far, which a new position attends to."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.attention import KeysValues, KVCache
from fairseq_residuals.wirings.core.errors import UserError


class DecoderCache(KVCache):
    """The cache of one batch, which begins empty.

    It is given to each call of a decoder, with the new positions alone: a prompt at once, then one by one.
    """

    def __init__(self) -> None:
        self.positions = 0
        """Number of positions that are kept."""
        self.padding: Tensor | None = None
        """(B, positions), True at padding; None where there is none."""
        self.words: dict[Any, tuple[Tensor, Tensor]] = {}
        """Keys and values (B, heads of these, positions, channels of a head), by attention module."""
        self.memories: dict[Any, KeysValues] = {}
        """Keys and values of the encoder's output, by module of cross-attention."""
        self.stack: nn.Module | None = None
        """The decoder whose keys and values these are; None before the first pass."""

    def __copy__(self) -> DecoderCache:
        """Return a cache that goes on by itself; no tensor in it is ever changed."""
        other = DecoderCache()
        vars(other).update(vars(self), words=dict(self.words), memories=dict(self.memories))
        return other

    def __deepcopy__(self, memo: Any) -> DecoderCache:
        """Return the same; the modules by which it is sorted are the stack's."""
        return copy(self)

    @property
    def rows(self) -> int | None:
        """Number of rows of the batch; None before the first pass."""
        return next((keys.size(0) for keys, _ in self.words.values()), None)

    def with_past(self, padding: Tensor | None, rows: int, new: int, device: torch.device) -> Tensor | None:
        """Return the padding of the positions so far and of new ones, (B, positions + new); None where there is none.

        Args:
            padding: (B, new), or None.
            rows: B.
        """
        if padding is None and self.padding is None:
            return None
        none_past = torch.zeros(rows, self.positions, dtype=torch.bool, device=device)
        none_new = torch.zeros(rows, new, dtype=torch.bool, device=device)
        past = none_past if self.padding is None else self.padding
        return torch.cat([past, none_new if padding is None else padding.bool()], 1)

    def advance(self, new: int, padding: Tensor | None) -> None:
        """Count positions that every layer has kept by now.

        Args:
            padding: (B, positions with the new ones), or None.
        """
        self.positions += new
        self.padding = padding

    def reorder(self, rows: Tensor) -> None:
        """Go on with other rows, as a beam search does: row i of the batch continues row ``rows[i]``."""
        self.words = {attn: (keys[rows], values[rows]) for attn, (keys, values) in self.words.items()}
        self.memories = {
            attn: memory._replace(
                keys=memory.keys[rows],
                values=memory.values[rows],
                padding_mask=None if memory.padding_mask is None else memory.padding_mask[rows],
            )
            for attn, memory in self.memories.items()
        }
        self.padding = None if self.padding is None else self.padding[rows]

    def recall(self, attn: Any) -> KeysValues | None:
        """Return what :meth:`.KVCache.recall` does."""
        return self.memories.get(attn)

    def remember(self, attn: Any, memory: KeysValues) -> KeysValues:
        """Keep what :meth:`.KVCache.remember` keeps."""
        self.memories[attn] = memory
        return memory

    def extend(self, attn: Any, new: KeysValues) -> KeysValues:
        """Extend as :meth:`.KVCache.extend` does; the padding mask of ``new`` is that of all positions already."""
        keys, values = new.keys, new.values
        if attn in self.words:
            keys, values = (torch.cat(pair, 2) for pair in zip(self.words[attn], (keys, values), strict=True))
        self.words[attn] = keys, values
        return new._replace(keys=keys, values=values)

    def belong_to(self, stack: nn.Module) -> None:
        """Belong to the stack that fills it first.

        Raises:
            UserError: the cache is another stack's, or lacks positions of a layer.
        """
        if self.stack not in (None, stack):
            raise UserError("this cache holds the keys and values of another stack; make a DecoderCache() for each")
        self.stack = stack
        if any(keys.size(2) != self.positions for keys, _ in self.words.values()):
            raise UserError(
                f"this cache has not the same {self.positions} positions of every layer: a pass broke off (make a new"
                " cache) or skipped layers (call eval()), or layers share a module of attention (which has no cache)"
            )
