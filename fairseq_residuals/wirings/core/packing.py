"""Packed input: the sentences of a batch end to end in one row, so that nothing is computed for padding.

Only attention looks across positions. By default it runs on the sentences side by side, padded to the longest; its
projections, norms, FFNs and the wiring run on the packed row.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from fairseq_residuals.wirings.core.errors import UserError


class Packing:
    """Boundaries of the sentences in a packed row."""

    def __init__(self, cu_seqlens: Tensor, sizes: tuple[int, int] | None = None) -> None:
        """Keep the boundaries.

        Args:
            cu_seqlens: (n + 1) integers, the cumulative lengths of n sentences: 0, n_1, n_1 + n_2, ..., total.
            sizes: the total, and at least the length of the longest sentence. Boundaries are then neither read nor
                checked, for which a device would be waited for, and sentences may be empty.

        Raises:
            UserError: without ``sizes``, they do not begin at 0, or a sentence has no position.
        """
        self.cu_seqlens = cu_seqlens
        self.sentences = len(cu_seqlens) - 1
        self.total, self.longest = _read(cu_seqlens) if sizes is None else sizes
        self._future_masks: dict[torch.dtype, Tensor] = {}

    @cached_property
    def _sentence(self) -> Tensor:
        """(total), number of each position's sentence."""
        position = torch.arange(self.total, device=self.cu_seqlens.device, dtype=self.cu_seqlens.dtype)
        return torch.searchsorted(self.cu_seqlens, position, right=True) - 1

    @cached_property
    def positions(self) -> Tensor:
        """(total), number of each position in its sentence, from 0."""
        position = torch.arange(self.total, device=self.cu_seqlens.device)
        return position - self.cu_seqlens.long()[self._sentence]

    @cached_property
    def _places(self) -> Tensor:
        """(total), place of each position in (longest, n) row by row."""
        return self.positions * self.sentences + self._sentence

    @cached_property
    def padding_mask(self) -> Tensor | None:
        """(n, longest), True at padding; None where all sentences are equally long."""
        if self.total == self.sentences * self.longest:
            return None
        position = torch.arange(self.longest, device=self.cu_seqlens.device)
        return position >= self.cu_seqlens.diff()[:, None]

    def future_mask(self, dtype: torch.dtype) -> Tensor:
        """Return (longest, longest), -inf where a position would see a later one, made once for all layers."""
        if dtype not in self._future_masks:
            mask = torch.full((self.longest, self.longest), -torch.inf, dtype=dtype, device=self.cu_seqlens.device)
            self._future_masks[dtype] = mask.triu(1)
        return self._future_masks[dtype]

    def unpack(self, x: Tensor) -> Tensor:
        """(total, 1, C) -> (longest, n, C), zeros at padding."""
        padded = x.new_zeros(self.longest * self.sentences, x.size(-1)).index_copy(0, self._places, x.squeeze(1))
        return padded.unflatten(0, (self.longest, self.sentences))

    def pack(self, x: Tensor) -> Tensor:
        """(longest, n, C) -> (total, 1, C)"""
        return x.flatten(0, 1).index_select(0, self._places).unsqueeze(1)


def _read(cu_seqlens: Tensor) -> tuple[int, int]:
    """Return the total and the longest length, which moves the boundaries to the CPU.

    Raises:
        UserError: they do not begin at 0, or a sentence has no position.
    """
    bounds: list[int] = cu_seqlens.tolist()
    if len(bounds) < 2 or bounds[0] != 0 or any(end <= start for start, end in pairwise(bounds)):
        raise UserError(f"cumulative lengths must begin at 0 and grow with each sentence, not be {bounds}")
    return bounds[-1], max(end - start for start, end in pairwise(bounds))
