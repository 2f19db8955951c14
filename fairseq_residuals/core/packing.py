"""Packed input: the sentences of a batch end to end in one row, so that nothing is computed for padding.

Only attention looks across positions. It runs on the sentences side by side, padded to the longest; norms, FFNs and
the wiring run on the packed row.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fairseq_residuals.core.errors import UserError


class Packing:
    """Where each sentence begins and ends in a packed row."""

    def __init__(self, cu_seqlens: Tensor) -> None:
        """Read the boundaries, which moves them to the CPU.

        Args:
            cu_seqlens: (n + 1) integers, the cumulative lengths of n sentences: 0, n_1, n_1 + n_2, ..., total.

        Raises:
            UserError: they do not begin at 0, or a sentence has no position.
        """
        bounds: list[int] = cu_seqlens.tolist()
        if len(bounds) < 2 or bounds[0] != 0 or any(end <= start for start, end in pairwise(bounds)):
            raise UserError(f"cumulative lengths must begin at 0 and grow with each sentence, not be {bounds}")
        lengths = cu_seqlens.diff().long()
        self.total = bounds[-1]
        self.sentences = len(bounds) - 1
        self.longest = max(end - start for start, end in pairwise(bounds))
        position = torch.arange(self.longest, device=cu_seqlens.device)
        self.padding_mask: Tensor | None = None
        """(n, longest), True at padding; None where all sentences are equally long."""
        if self.total < self.sentences * self.longest:
            self.padding_mask = position >= lengths[:, None]
        sentence = torch.arange(self.sentences, device=cu_seqlens.device).repeat_interleave(lengths)
        offset = torch.arange(self.total, device=cu_seqlens.device) - cu_seqlens[:-1].long()[sentence]
        self.positions = offset
        """(total), of each position in its sentence, from 0."""
        # in (longest, n), row by row
        self._places = offset * self.sentences + sentence

    def unpack(self, x: Tensor) -> Tensor:
        """(total, 1, C) -> (longest, n, C), zeros at padding."""
        padded = x.new_zeros(self.longest * self.sentences, x.size(-1)).index_copy(0, self._places, x.squeeze(1))
        return padded.unflatten(0, (self.longest, self.sentences))

    def pack(self, x: Tensor) -> Tensor:
        """(longest, n, C) -> (total, 1, C)"""
        return x.flatten(0, 1).index_select(0, self._places).unsqueeze(1)
