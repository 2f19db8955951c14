"""How large the stream is on top of untrained stacks, as the sums of uncorrelated terms that designs count on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_residuals.wirings.build import build_stack

DIM = 96


@torch.no_grad()
def below_and_on_top(name: str, depth: int, options: dict[str, Any], *, cross: bool = False) -> tuple[Tensor, Tensor]:
    """The stream of unit variance that enters, and the one above the last layer, (T, B, C)."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"depth": depth, "dim": DIM, "heads": 4, "ffn_dim": 2 * DIM, "options": options}
    stack: Any = build_stack(name, task="decoder", other_depth=depth, **sizes) if cross else build_stack(name, **sizes)
    seen: list[Tensor] = []
    stack[depth - 1].register_forward_hook(lambda module, inputs, output: seen.append(output[0]["x"]))
    x, memory = torch.randn(2, 40, 8, DIM)
    stack(x, memory=memory) if cross else stack(x)
    return x, seen[0]


@pytest.mark.parametrize("depth", [6, 24])
@pytest.mark.parametrize(
    ("name", "options", "cross", "expected"),
    [
        ("sandwich_ln", {"depth_scaled": True}, False, lambda depth: 3),
        ("sandwich_ln", {"depth_scaled": "pangu"}, False, lambda depth: 1 + 0.283**2 + 0.432**2),
        ("sandwich_ln", {"depth_scaled": True}, True, lambda depth: 4),
        ("sandwich_ln", {}, False, lambda depth: 1 + 2 * depth),
        ("beam_residual", {}, False, lambda depth: 1),
        ("beam_residual", {}, True, lambda depth: 1),
    ],
)
def test_variance(name: str, options: dict[str, Any], cross: bool, expected: Any, depth: int) -> None:
    """1 and that of each normalised branch, times its gain c^2 / L: any depth, but for the plain sandwich."""
    _, top = below_and_on_top(name, depth, options, cross=cross)
    assert top.var().item() == pytest.approx(expected(depth), rel=0.15)


@pytest.mark.parametrize(("alpha", "growth"), [(0.5, 1.0), (1.0, 0.5)])
def test_what_layers_add_at_four_times_the_depth(alpha: float, growth: float) -> None:
    """m_L^(1/2 - alpha) (Dey et al. 2025): of uncorrelated branches, depth-muP's sum stays as large."""
    added = []
    for depth in (8, 32):
        x, top = below_and_on_top("pre_ln", depth, {"depth_mup": alpha})
        added.append((top - x).std().item())
    assert added[1] / added[0] == pytest.approx(growth, rel=0.1)
