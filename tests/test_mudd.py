"""MUDDFormer: the sizes of its hidden layers and mixes, and where their weights start."""

from __future__ import annotations

import torch
from tiny import build, stacks

LAYERS = 4


def test_hidden_layers_are_as_wide_as_published() -> None:
    for options, last in (("expand_last=false", 5), ("expand_last=true", 20)):
        for stack in stacks(build("translation", "mudd", "--residual-args", options, layers=LAYERS)):
            assert [tuple(w2.shape) for w2 in stack.wiring.w2] == [(8, 8), (12, 12), (16, 16), (5, last)]
    options = "expand_last=true,round_hidden=true"
    for stack in stacks(build("translation", "mudd", "--residual-args", options, layers=16)):
        assert [w2.shape[1] for w2 in stack.wiring.w2] == [64] * 14 + [128, 128]  # of 16 outputs, 64 becomes 128


def test_where_the_weights_of_the_mixes_start() -> None:
    """W1 at N(0, 1 / C), here with 16 channels and 1,200 numbers in all."""
    layers = [stack.wiring for stack in stacks(build("translation", "mudd", layers=LAYERS))]
    w1 = torch.cat([weight.flatten() for wiring in layers for weight in wiring.w1])
    assert w1.numel() >= 1000 and abs(w1.std().item() - 0.25) < 0.02
    assert not any(weight.any() for wiring in layers for weight in wiring.w2)
