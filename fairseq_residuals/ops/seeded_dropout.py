"""Drop values at random by a seed, which is kept for the gradient instead of a mask.

    out[r, c] = y[r, c] / (1 - p) if bits[r, c] >= p 2^32 else 0                       y, out (..., width), r a row of y

where bits[r, c] is word c mod 4 of Philox 4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3")
for the counter r ceil(width / 4) + c // 4 and the key ``seed``. The seed is a number on the device that PyTorch's
generator draws there, so that a CUDA graph draws another one whenever it is replayed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_residuals.utils.precision import at_least_fp32
from fairseq_residuals.utils.triton_kernels import kernels_run_on

LEVELS = 2**32
ROUNDS = 10
KEYS = (0x9E3779B9, 0xBB67AE85)
FACTORS = (0xD2511F53, 0xCD9E8D57)
LOW = LEVELS - 1


class Dropout(NamedTuple):
    """What is dropped: with which probability, by which seed (1); no seed where nothing is."""

    p: float = 0.0
    seed: Tensor | None = None

    @property
    def level(self) -> int:
        """The least 32 bits that stay."""
        return round(self.p * LEVELS)

    @property
    def scale(self) -> float:
        """What is left is multiplied by this."""
        return 1 / (1 - self.p)


NOTHING_DROPPED = Dropout()


def draw_dropout(p: float, device: torch.device) -> Dropout:
    """Return a dropout of probability ``p`` < 1 by a new seed of the device's generator."""
    if p == 0:
        return NOTHING_DROPPED
    return Dropout(p, torch.randint(2**63 - 1, (1,), device=device))


def philox(seed: Tensor, counter: Tensor) -> Tensor:
    """Return four random words of 32 bits for each counter of four such words, (N, 4) -> (N, 4), in int64."""
    keys = [seed & LOW, (seed >> 32) & LOW]
    words = list(counter.unbind(-1))
    for _ in range(ROUNDS):
        # a product of two words has 64 bits; a shift repeats the highest, which the mask takes away
        high0, low0 = ((words[0] * FACTORS[0]) >> 32) & LOW, (words[0] * FACTORS[0]) & LOW
        high1, low1 = ((words[2] * FACTORS[1]) >> 32) & LOW, (words[2] * FACTORS[1]) & LOW
        words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
        keys = [(key + step) & LOW for key, step in zip(keys, KEYS, strict=True)]
    return torch.stack(words, -1)


def kept(y: Tensor, dropout: Dropout) -> Tensor:
    """Return which values of y stay, (..., width) -> (..., width), bool."""
    assert dropout.seed is not None
    rows, quads = y.numel() // y.size(-1), -(-y.size(-1) // 4)
    counter = torch.zeros(rows * quads, 4, dtype=torch.int64, device=y.device)
    counter[:, 0] = torch.arange(rows * quads, device=y.device)
    return philox(dropout.seed, counter).view(*y.shape[:-1], -1)[..., : y.size(-1)] >= dropout.level


def reference(y: Tensor, dropout: Dropout) -> Tensor:
    """Drop by a mask."""
    if dropout.seed is None:
        return y
    return torch.where(kept(y, dropout), at_least_fp32(y) * dropout.scale, 0).to(y.dtype)


def seeded_dropout(y: Tensor, dropout: Dropout) -> Tensor:
    """Drop values of y, (..., width) -> (..., width)."""
    if dropout.seed is None or not kernels_run_on(y):
        return reference(y, dropout)
    return _SeededDropout.apply(y, dropout)  # type: ignore[no-any-return, no-untyped-call]


class _SeededDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, dropout: Dropout) -> Tensor:
        ctx.save_for_backward(dropout.seed)
        ctx.p = dropout.p
        return _dropped(y, dropout)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _dropped(grad_out, Dropout(ctx.p, *ctx.saved_tensors)), None


def _dropped(y: Tensor, dropout: Dropout) -> Tensor:
    from fairseq_residuals.ops.kernels.seeded_dropout import drop

    assert dropout.seed is not None
    rows = y.reshape(-1, y.size(-1)).contiguous()
    return drop(rows, dropout.seed, dropout.level, dropout.scale).view(y.shape)
