"""Means of permutations: as their reference, doubly stochastic, and every permutation is one of them."""

from __future__ import annotations

import math

import pytest
import torch

from fairseq_residuals.wirings.ops.permutations import (
    mean_of_permutations,
    mean_of_permutations_reference,
    permutation_matrices,
)


@pytest.mark.parametrize("n", (1, 2, 3, 4))
@pytest.mark.parametrize("leading", ((), (5,), (3, 2)))
def test_as_the_reference(n: int, leading: tuple[int, ...]) -> None:
    matrices = permutation_matrices(n)
    logits = torch.randn(math.factorial(n), *leading, dtype=torch.float64, requires_grad=True)
    upper = torch.randn(*leading, n, n, dtype=torch.float64)
    values = [op(logits, matrices) for op in (mean_of_permutations, mean_of_permutations_reference)]
    torch.testing.assert_close(values[0], values[1])
    gradients = [torch.autograd.grad((value * upper).sum(), logits)[0] for value in values]
    torch.testing.assert_close(gradients[0], gradients[1])
    ones = torch.ones(*leading, n, dtype=torch.float64)
    torch.testing.assert_close(values[0].sum(-1), ones)
    torch.testing.assert_close(values[0].sum(-2), ones)


def test_every_permutation_is_there_once_and_the_identity_first() -> None:
    matrices = permutation_matrices(4)
    assert torch.equal(matrices[0], torch.eye(4)) and len({tuple(p.flatten().tolist()) for p in matrices}) == 24
    certain = torch.full((24,), -1e4).index_fill(0, torch.tensor([7]), 0.0)
    assert torch.equal(mean_of_permutations(certain, matrices), matrices[7])
