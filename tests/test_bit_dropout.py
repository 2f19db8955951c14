"""Dropout by 16 bits each: the reference for the same bits, and the share of zeros."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from against_reference import CHECKS, Case
from autograd_memory import kept_for_gradients
from torch import Tensor

from fairseq_residuals.plugin.speed.bit_dropout import LEVELS, bit_dropout, random_levels, reference


def seeded(op: Callable[[Tensor, int], Tensor], dropped: int) -> Callable[[Tensor], Tensor]:
    """The op with the same bits in each call."""

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return op(x, dropped)

    return run


# not compiled: there fairseq's dropout is used
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("dropped", (1, 6554, LEVELS // 2))
@pytest.mark.parametrize("shape", ((9, 5), (4, 3, 2)), ids=str)
def test_against_reference(shape: tuple[int, ...], dropped: int, check: Callable[[Case], None]) -> None:
    ops = (seeded(op, dropped) for op in (bit_dropout, reference))
    check(Case("bit_dropout", *ops, (shape,)))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("shape", ((), (1,), (3,), (0, 4), (1001, 3)), ids=str)
def test_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(seeded(bit_dropout, LEVELS // 4)(x), seeded(reference, LEVELS // 4)(x))


def test_share_of_zeros() -> None:
    """Within five standard deviations."""
    torch.manual_seed(2)
    zeros = bit_dropout(torch.ones(1000, 1000), 6554).eq(0).double().mean().item()
    assert abs(zeros - 6554 / LEVELS) < 5 * (0.09 / 1e6) ** 0.5


def test_levels_are_uniform() -> None:
    torch.manual_seed(2)
    levels = random_levels(torch.empty(2**20))
    assert levels.min() >= 0 and levels.max() < LEVELS
    counts = levels.div(LEVELS // 16, rounding_mode="floor").bincount(minlength=16)
    assert (counts - 2**16).abs().max() < 5 * 2**8


def test_the_mask_has_one_byte_a_value() -> None:
    x = torch.randn(64, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        bit_dropout(x, 6554)
    assert [t.element_size() for t in kept] == [1]
    with kept_for_gradients(64) as addresses:
        bit_dropout(x, 6554)
    assert x.data_ptr() not in addresses
