"""mHC: where the router starts, and that the streams part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_hyper_connections import connections
from tiny import batch, build, logits
from torch import nn

from fairseq_residuals.wirings.variants._streams import stack_streams

LM = "language_modeling"


def spread_after_training(model: Any, updates: int = 10) -> float:
    """How far apart the streams are at the top, after some updates in double precision. By gradient descent: Adam takes
    what rounding leaves of a gradient of zero for a direction."""
    inputs, seen = batch(LM), []
    model.double().decoder.layers[1].register_forward_hook(
        lambda m, args, out: seen.append(stack_streams(out[0], 4).detach())
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(updates + 1):
        loss = nn.functional.cross_entropy(logits(model, LM, inputs), inputs["src_tokens"][inputs["src_tokens"].ne(1)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (seen[-1] - seen[0]).abs().max() > 0.01
    return (seen[-1] - seen[-1][:, :, :1]).abs().max().item()


@pytest.mark.parametrize("mixing", ("uniform", "identity"))
def test_streams_part_unless_the_router_is_zero(mixing: str) -> None:
    spreads = {}
    for router in (1.0, 0.0):
        model = build(LM, "mhc", "--residual-args", f"mixing={mixing}").train()
        for connection in connections(model):
            connection.router.logits.weight.data.mul_(router)
        spreads[router] = spread_after_training(model)
    assert spreads[1.0] > 1e-3 and spreads[0.0] < 1e-12


def test_where_the_router_starts() -> None:
    (router, *_) = (c.router for c in connections(build(LM, "mhc")))
    assert router.logits.weight.shape == (24, 64)
    assert router.logits.weight.std().item() == pytest.approx(1 / 8, rel=0.1)
    assert not router.logits.bias.any() and router.scale.tolist() == pytest.approx([0.01] * 3)
    mix = router(torch.randn(5, 2, 4, 16)).mix
    torch.testing.assert_close(mix, torch.full_like(mix, 0.25), rtol=0, atol=0.02)
    (router, *_) = (c.router for c in connections(build(LM, "mhc", "--residual-args", "mixing=identity")))
    mix = router(torch.randn(5, 2, 4, 16)).mix
    # of 4 I the rows and columns are alike, so that one step is all
    diagonal = torch.tensor(4.0).exp() / (torch.tensor(4.0).exp() + 3)
    expected = torch.eye(4) * diagonal + (1 - torch.eye(4)) * (1 - diagonal) / 3
    torch.testing.assert_close(mix, expected.expand_as(mix), rtol=0, atol=0.02)
