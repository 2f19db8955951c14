"""What the faster beam search is made of: the best words of a row, and packed matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

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
