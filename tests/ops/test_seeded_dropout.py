"""Dropout by a seed: Philox's published numbers, one mask for both passes, and the kernel's mask."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICE, draw, needs_triton, with_gradients

from fairseq_residuals.ops.seeded_dropout import Dropout, draw_dropout, philox, reference, seeded_dropout

SEED = torch.tensor([987654321987654321], device=DEVICE)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    (
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ),
)
def test_published_numbers(counter: str, key: str, words: str) -> None:
    """Of Random123's known answers (kat_vectors) for philox4x32 with 10 rounds; words are in order of their index."""
    low, high = (int(word, 16) for word in key.split())
    seed = torch.tensor([low]) | torch.tensor([high]) << 32
    found = philox(seed, torch.tensor([[int(word, 16) for word in counter.split()]]))
    assert " ".join(f"{word:08x}" for word in found[0].tolist()) == words


def test_about_as_many_are_dropped_as_asked_for() -> None:
    """Within 5 standard deviations, in each of the four words of a draw; what is left is scaled."""
    out = reference(torch.ones(200, 100, device=DEVICE), Dropout(0.3, SEED))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    for word in range(4):
        assert out[:, word::4].eq(0).float().mean().item() == pytest.approx(0.3, abs=5 * (0.21 / 5000) ** 0.5)


def test_seeds_are_the_generators() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append([draw_dropout(0.1, DEVICE).seed.item() for _ in range(2)])  # type: ignore[union-attr]
    assert drawn[0] == drawn[1] and len({*drawn[0], *drawn[2]}) == 4
    assert draw_dropout(0.0, DEVICE) == Dropout()


@needs_triton
@pytest.mark.parametrize("width", (1, 4, 13, 32))
def test_the_kernel_has_the_masks_of_the_reference(width: int) -> None:
    dropout = Dropout(0.3, SEED)
    ours, expected = (
        with_gradients(lambda y, f=f: f(y, dropout), [draw(3, 5, width)]) for f in (seeded_dropout, reference)
    )
    assert torch.equal(ours[0][0], expected[0][0]) and torch.equal(ours[1][0], expected[1][0])
    assert expected[0][0].eq(0).any()


@needs_triton
def test_of_what_is_not_contiguous_and_in_half_precision() -> None:
    dropout = Dropout(0.5, SEED)
    y = draw(6, 5, dtype=torch.bfloat16).T
    assert torch.equal(seeded_dropout(y, dropout), reference(y, dropout))
