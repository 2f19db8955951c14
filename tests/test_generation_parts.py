"""What the faster beam search is made of: the best words of a row, and packed matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fairseq_residuals.plugin.search.beams import CHUNK, topk
from fairseq_residuals.plugin.search.packed_linear import PackedLinears
from fairseq_residuals.plugin.torch_private import packs_matrices, packs_type

needs_onednn = pytest.mark.skipif(not packs_matrices(), reason="this PyTorch has no oneDNN")


@needs_onednn
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_packed_matrices(dtype: torch.dtype, tolerance: float) -> None:
    layer = nn.Linear(256, 260).to(dtype)
    x = torch.randn(2, 5, 256, dtype=dtype)
    small = nn.Linear(48, 130).to(dtype)
    linears = PackedLinears()
    with torch.no_grad(), linears:
        small(x[..., :48])
    assert not linears.packed
    with torch.no_grad():
        expected = layer(x)
        with linears:
            torch.testing.assert_close(layer(x), expected, rtol=0, atol=tolerance)
            torch.testing.assert_close(
                F.linear(x, layer.weight), F.linear(x.float(), layer.weight.float()).to(dtype), rtol=0, atol=tolerance
            )
        # where the processor cannot multiply packed matrices of the type, they stay as they are
        assert list(linears.packed) == ([layer.weight] if packs_type(dtype) else [])
        layer.weight.mul_(2)
        changed = layer(x)
        with linears:
            torch.testing.assert_close(layer(x), changed, rtol=0, atol=tolerance)
        layer.weight.data = torch.randn_like(layer.weight)
        with linears:
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=tolerance)


@needs_onednn
def test_gradients_pass_through_what_is_not_packed() -> None:
    layer = nn.Linear(8, 8)
    linears = PackedLinears()
    with linears:
        layer(torch.randn(3, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert not linears.packed


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
def test_topk_of_other_layouts(layout: str, dtype: torch.dtype) -> None:
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
