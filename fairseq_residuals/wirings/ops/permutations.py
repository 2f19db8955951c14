"""Make doubly stochastic matrices as weighted means of all permutations (Birkhoff and von Neumann).

    H = Σ_r a_r P_r,  a = softmax(logits)            logits (n!, ...), P_r (n, n), H (..., n, n)

Rows and columns sum to one whatever the logits, and every doubly stochastic matrix is such a mean.
"""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor


def permutation_matrices(n: int) -> Tensor:
    """Return all permutations of n, (n!, n, n), in lexicographic order: the first is the identity."""
    return torch.eye(n)[torch.tensor(list(permutations(range(n))))]


def mean_of_permutations_reference(logits: Tensor, matrices: Tensor) -> Tensor:
    """Return the same, a permutation at a time."""
    terms = [a[..., None, None] * p for a, p in zip(logits.softmax(0), matrices.to(logits.dtype), strict=True)]
    return torch.stack(terms).sum(0)


def mean_of_permutations(logits: Tensor, matrices: Tensor) -> Tensor:
    """Return H, of logits (n!, ...) and the permutations (n!, n, n)."""
    return torch.tensordot(logits.softmax(0), matrices.to(logits.dtype), ([0], [0]))
