"""SiameseNorm: Pre-LN and Post-LN as special cases of its two streams, and its scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import build, stacks
from torch import Tensor
from torch.nn.functional import layer_norm
from wired_sublayers import assert_close, wired

LAYERS = 3


def zero(norm: Any) -> None:
    torch.nn.init.zeros_(norm.weight)
    torch.nn.init.zeros_(norm.bias)


def test_without_the_post_ln_stream_it_is_pre_ln() -> None:
    """Its norms at 0, and those of the other stream, which are before the norm of what F is fed, at 1."""
    plain = wired("pre_ln", layers=LAYERS, eps=1e-14)
    for one, other in zip(wired("siamese_norm", layers=LAYERS, eps=1e-14, like="pre_ln"), plain, strict=True):
        for owner in (*(connection for connection, _ in one.sublayers()), one.stack.wiring):
            zero(owner.post_norm)
            owner.pre_norm.reset_parameters()
        assert_close(one.output(), other.output())
        found, wanted = one.gradients(one.output()), other.gradients(other.output())
        assert_close({name: found[name] for name in wanted}, wanted)


def test_without_the_pre_ln_stream_it_is_post_ln_with_scaled_branches() -> None:
    """x' = LN(x + F(x) / c), of normalised embeddings, under another norm on top; every norm but x's at 1."""
    for one in wired("siamese_norm", layers=LAYERS, eps=1e-14):
        sublayers, top = one.sublayers(), one.stack.wiring
        for owner in (*(connection for connection, _ in sublayers), top):
            zero(owner.pre_norm)
            owner.post_norm.reset_parameters()
            owner.norm.reset_parameters()
        n_sub = len(sublayers) // LAYERS
        x = layer_norm(one.x, (16,))
        for k, (_, f) in enumerate(sublayers):
            x = layer_norm(x + f(x) / (2 * (k // n_sub + 1)) ** 0.5, (16,))
        assert (one.output() - x).abs().max() < 1e-4


@torch.no_grad()
def test_one_stream_stays_and_the_other_grows() -> None:
    """24 layers, untrained: the variance of x is 1 wherever it is read, that of y is that of a sum of 48 outputs."""
    (stack,) = stacks(build("language_modeling", "siamese_norm", "--residual-args", "init=xavier", layers=24))
    of_x: list[float] = []
    of_y: list[float] = []
    for i in range(24):
        for connection in (stack[i].self_attn_connection, stack[i].ffn_connection):
            connection.post_norm.register_forward_hook(lambda module, inputs, x: of_x.append(variance(x)))
            connection.pre_norm.register_forward_pre_hook(lambda module, inputs: of_y.append(variance(inputs[0])))
    stack(torch.randn(20, 4, 16))
    assert of_x == pytest.approx([1.0] * 48, abs=1e-3)
    assert of_y[24] > 3 * of_y[0] and of_y[47] > 1.3 * of_y[24]


def variance(x: Tensor) -> float:
    return float(x.var(-1, correction=0).mean())
