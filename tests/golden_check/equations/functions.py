"""The functions that equations may name, written as they are defined."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Value = Any
"""A number, a tensor, or a family of these: a dictionary by index."""


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Over channels, which remain as one."""
    return (a * b).sum(-1, keepdim=True)


def unit_rms(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide by the root of the mean square of the channels."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def standardize(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Subtract the channels' mean and divide by their standard deviation."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def floor(x: float) -> int:
    """Of numbers written in decimals: 0.29 of 100 is 29, though not in floating point."""
    return math.floor(x + 1e-6)


def ceil(x: float) -> int:
    return math.ceil(x - 1e-6)


def one_of_equal_parts(x: Tensor, i: float, n: float) -> Tensor:
    return x.chunk(int(n), -1)[int(i)]


def balance(logits: dict[tuple[int, ...], Tensor]) -> dict[tuple[int, ...], Tensor]:
    """Sinkhorn and Knopp: exponentials whose columns, then rows, are divided by their sums, 20 times."""
    matrix = {place: value.exp() for place, value in logits.items()}
    for axis in (1, 0) * 20:
        sums: dict[int, Tensor | float] = {}
        for place, value in matrix.items():
            sums[place[axis]] = sums.get(place[axis], 0.0) + value
        matrix = {place: value / sums[place[axis]] for place, value in matrix.items()}
    return matrix


def mean_of_orders(logits: dict[tuple[int, ...], Tensor]) -> dict[tuple[int, ...], Tensor]:
    """All matrices with a single 1 in each row and column, weighted by a softmax: those of the logits, in order."""
    shares = torch.stack([logits[r,] for r in range(len(logits))]).softmax(0)
    n = next(n for n in itertools.count(1) if math.factorial(n) == len(logits))
    matrix: dict[tuple[int, ...], Tensor] = {(i, j): shares[0] * 0 for i in range(n) for j in range(n)}
    for share, order in zip(shares, itertools.permutations(range(n)), strict=True):
        for place in enumerate(order):
            matrix[place] = matrix[place] + share
    return matrix


def of_either(number: Callable[[float], float], tensor: Callable[[Tensor], Tensor]) -> Callable[[Value], Value]:
    return lambda x: tensor(x) if isinstance(x, Tensor) else number(x)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sqrt": of_either(math.sqrt, torch.sqrt),
    "exp": of_either(math.exp, torch.exp),
    "log": of_either(math.log, torch.log),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "abs": abs,
    "min": min,
    "max": lambda a, b: a.clamp(min=b) if isinstance(a, Tensor) else max(a, b),
    "floor": floor,
    "ceil": ceil,
    "dot": inner_product,
    "RMS": unit_rms,
    "standardize": standardize,
    "part": one_of_equal_parts,
    "sinkhorn": balance,
    "permute": mean_of_orders,
    "factorial": lambda n: math.factorial(int(n)),
    "stop_gradient": lambda x: x.detach(),
}
NORM_FUNCTIONS = ("RMS", "standardize")
"""Those whose eps is what equations call norm_eps, where they say it and the call does not."""


def _layer_norm(x: Tensor, norm: Any) -> Tensor:
    return standardize(x, norm.eps) * norm.weight + (0.0 if norm.bias is None else norm.bias)


def _rms_norm(x: Tensor, norm: Any) -> Tensor:
    return unit_rms(x, norm.eps) * norm.weight


def _dynamic_tanh(x: Tensor, norm: Any) -> Tensor:
    return norm.weight * torch.tanh(norm.alpha * x) + (0.0 if norm.bias is None else norm.bias)


def _dynamic_erf(x: Tensor, norm: Any) -> Tensor:
    return norm.weight * torch.erf(norm.alpha * x + norm.shift) + (0.0 if norm.bias is None else norm.bias)


def _scale_norm(x: Tensor, norm: Any) -> Tensor:
    return norm.weight * x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=norm.eps)


NORMS: dict[str, Callable[[Tensor, nn.Module], Tensor]] = {
    "layer": _layer_norm,
    "rms": _rms_norm,
    "scalenorm": _scale_norm,
    "dyt": _dynamic_tanh,
    "derf": _dynamic_erf,
}
"""What LN is, by ``norm_type``; of the module only its parameters and eps are used."""
