"""LAuReL, of which no code was published: the paper's equations, written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from wired_sublayers import Wired, assert_close, wired


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, (16,), norm.weight, norm.bias, norm.eps)


def equations(one: Wired, k: int) -> Tensor:
    """``k``: how many of the last outputs are added up; 0: x itself, without coefficients."""
    outputs = [one.x]
    for connection, f in one.sublayers():
        x, y = outputs[-1], f(normed(connection.norm, outputs[-1]))
        total = torch.zeros_like(x)
        if k:
            recent = outputs[::-1][:k]
            assert len(connection.c) == len(recent)
            total = sum((c * old for c, old in zip(connection.c, recent, strict=True)), total)
        elif connection.low_rank is not None:
            total = x
        if connection.low_rank is not None:
            total = total @ connection.low_rank.down.weight.T @ connection.low_rank.up.weight.T
        if connection.weights is None:
            outputs.append(y + x + total)
        else:
            shares = connection.weights.exp() / connection.weights.exp().sum()
            outputs.append(2 * shares[0] * y + 2 * shares[1] * (x + total))
    return normed(one.stack.wiring.norm, outputs[-1])


@pytest.mark.parametrize(
    ("name", "args", "k"),
    [
        ("laurel_rw", "", 0),
        ("laurel_lr", "rank=3", 0),
        ("laurel_lr", "rank=3,rw=true", 0),
        ("laurel_pa", "", 3),
        ("laurel_pa", "past=1,rank=0", 1),
        ("laurel_pa", "past=100,rank=2,rw=true", 100),
    ],
)
def test_equations(name: str, args: str, k: int) -> None:
    """The output, and the gradient of all that it is made of."""
    for one in wired(name, args, layers=4):
        outputs = one.output(), equations(one, k)
        assert_close(*outputs)
        weights, leaves = torch.linspace(-1, 1, outputs[0].numel()), [one.x, *one.stack.parameters()]
        assert_close(*(torch.autograd.grad(out.flatten() @ weights.to(out), leaves) for out in outputs))
