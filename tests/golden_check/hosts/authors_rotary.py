"""Rotary positions as authors' code has them, in several layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fairseq_residuals.wirings.blocks.attention import Rotary


@dataclass(frozen=True)
class AuthorsRotary(Rotary):
    """Rotary positions as some authors' code has them."""

    style: Literal["half", "interleaved"] = "half"
    """Channels of a head that turn together: i and i + half (LLaMA, GPT-NeoX), or 2i and 2i + 1 (RoFormer, GPT-J)."""
    channels: int = 0
    """Number of the channels of each head that turn, from the first; 0: all."""
    direction: Literal[1, -1] = 1
    """-1: by the negative angles."""
    rounded: torch.dtype | None = None
    """What sines and cosines are rounded to."""

    def table(self, heads: Tensor, first: int) -> tuple[Tensor, Tensor]:
        cos, sin = (value.to(self.rounded or value.dtype) for value in super().table(heads, first))
        return cos, self.direction * sin

    def __call__(self, heads: Tensor, first: int = 0) -> Tensor:
        channels = self.channels or heads.size(-1)
        turning, rest = heads[..., :channels], heads[..., channels:]
        if self.style == "half":
            return torch.cat([super().__call__(turning, first), rest], -1)
        turned = super().__call__(turning.unflatten(-1, (-1, 2)).mT.flatten(-2), first)
        return torch.cat([turned.unflatten(-1, (2, -1)).mT.flatten(-2), rest], -1)
