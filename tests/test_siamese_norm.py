"""SiameseNorm: one stream keeps its size, and the other grows."""

from __future__ import annotations

import pytest
import torch
from tiny import build, stacks
from torch import Tensor


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
