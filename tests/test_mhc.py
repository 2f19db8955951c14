"""mHC, mHC-lite and Identity-HC: where they start, means of permutations, and that the streams part."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_hyper_connections import connections, streams_like
from tiny import batch, build, logits, stacks
from torch import nn

from fairseq_residuals.wirings.variants._streams import stack_streams
from fairseq_residuals.wirings.variants.mhc_lite import mean_of_permutations, permutation_matrices

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


def test_mhc_lite_starts_with_nearly_the_identity() -> None:
    """At n = 4: pre 0.731 and 0.269, post 1.462 and 0.538, a weight of the identity of 1 / (1 + 23 e^-8)."""
    for stack in stacks(build("translation", "mhc_lite", layers=3)):
        for k, connection in enumerate(connections(stack)):
            weights = connection.router(streams_like(connection, 4).float())
            one = torch.eye(4)[k % 4]
            expected = torch.where(one > 0, 0.7310586, 0.2689414).expand(3, 2, 4)
            torch.testing.assert_close(weights.read.squeeze(-2), expected)
            torch.testing.assert_close(weights.write.squeeze(-1), 2 * expected)
            # every stream keeps its place in 6 of the 24 permutations, the identity among them
            kept = (1 + 5 * torch.tensor(-8.0).exp()) / (1 + 23 * torch.tensor(-8.0).exp())
            torch.testing.assert_close(weights.mix.diagonal(dim1=-2, dim2=-1), kept.expand(3, 2, 4))


@pytest.mark.parametrize("variant", ("mhc_lite", "identity_hc"))
def test_streams_part_from_the_first_update(variant: str) -> None:
    """From the first update on, though the router's matrix starts at zero."""
    for updates in (0, 3):
        model: Any = build(LM, variant).train()
        assert spread_after_training(model, updates + 1) > 0.01


@pytest.mark.parametrize(("n", "expected"), [(1, [0.0]), (2, [-1.0, 1.0]), (4, [-1.0, -1 / 3, 1 / 3, 1.0])])
def test_biases_of_identity_hc_start_from_minus_1_to_1(n: int, expected: list[float]) -> None:
    connection = connections(build(LM, "identity_hc", "--residual-args", f"n={n}"))[0]
    torch.testing.assert_close(connection.router.logits.bias[-n:], torch.tensor(expected))


def test_identity_hc_starts_with_the_mean_and_writes_one_on_average() -> None:
    connection = connections(build(LM, "identity_hc"))[0]
    weights = connection.router(streams_like(connection, 4).float())
    torch.testing.assert_close(weights.read, torch.full((3, 2, 1, 4), 0.25))
    torch.testing.assert_close(weights.write.mean(-2), torch.ones(3, 2, 1))
    assert weights.write.squeeze(-1).diff(dim=-1).gt(0.2).all()
    assert torch.equal(weights.mix, torch.eye(4))


@pytest.mark.parametrize("n", (1, 2, 3, 4))
@pytest.mark.parametrize("leading", ((), (5,), (3, 2)))
def test_gradients_of_means_of_permutations(n: int, leading: tuple[int, ...]) -> None:
    matrices = permutation_matrices(n)
    scores = torch.randn(math.factorial(n), *leading, dtype=torch.float64, requires_grad=True)
    upper = torch.randn(*leading, n, n, dtype=torch.float64)
    one_at_a_time = [a[..., None, None] * p.double() for a, p in zip(scores.softmax(0), matrices, strict=True)]
    values = [mean_of_permutations(scores, matrices), torch.stack(one_at_a_time).sum(0)]
    torch.testing.assert_close(values[0], values[1])
    gradients = [torch.autograd.grad((value * upper).sum(), scores)[0] for value in values]
    torch.testing.assert_close(gradients[0], gradients[1])
    ones = torch.ones(*leading, n, dtype=torch.float64)
    torch.testing.assert_close(values[0].sum(-1), ones)
    torch.testing.assert_close(values[0].sum(-2), ones)


def test_every_permutation_is_there_once_and_the_identity_first() -> None:
    matrices = permutation_matrices(4)
    assert torch.equal(matrices[0], torch.eye(4)) and len({tuple(p.flatten().tolist()) for p in matrices}) == 24
    certain = torch.full((24,), -1e4).index_fill(0, torch.tensor([7]), 0.0)
    assert torch.equal(mean_of_permutations(certain, matrices), matrices[7])
