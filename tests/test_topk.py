"""The largest entries of rows are those that a search of the whole rows finds."""

from __future__ import annotations

import pytest
import torch

from fairseq_residuals.plugin.search.beams import CHUNK, topk


@pytest.mark.parametrize("k", [1, 8, 11])
@pytest.mark.parametrize("words", [40, 12 * CHUNK, 12 * CHUNK + 1, 13 * CHUNK - 1])
def test_topk(words: int, k: int) -> None:
    scores = torch.randn(6, words, generator=torch.Generator().manual_seed(1))
    scores[0, -k:] += 10  # all in the rest of the row
    scores[1, CHUNK : CHUNK + k] += 10  # all in one chunk
    scores[2] = -torch.inf
    scores[2, ::37] = 1.0 * torch.arange(len(scores[2, ::37]))
    (expected, places), (values, indices) = scores.topk(k), topk(scores, k)
    assert torch.equal(values, expected)
    possible = expected.isfinite()
    assert torch.equal(indices[possible], places[possible])


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("layout", ("one row", "strided", "expanded"))
def test_other_layouts(layout: str, dtype: torch.dtype) -> None:
    """Numbers that are all different, so that the places are too, but for a row that is there three times."""
    order = torch.randperm(5 * CHUNK + 3, generator=torch.Generator().manual_seed(4)).double()
    scores = {
        "one row": order[None],
        "strided": torch.stack([order, order.flip(0)], 1).t(),
        "expanded": order.expand(3, -1),
    }[layout].to(dtype)
    (expected, places), (values, indices) = scores.topk(3), topk(scores, 3)
    assert torch.equal(values, expected)
    assert torch.equal(scores.gather(1, indices), expected)
    if dtype != torch.bfloat16:  # which rounds neighbours to one number
        assert torch.equal(indices, places)
