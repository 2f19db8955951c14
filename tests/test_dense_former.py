"""DenseFormer: which outputs are kept and how long, its weights, and what a gradient keeps."""

from __future__ import annotations

import pytest
import torch
from autograd_memory import kept_for_gradients
from tiny import build, stacks
from torch import Tensor
from wired_sublayers import wired

from fairseq_residuals.wirings.core.base import Stream

PAIRS = pytest.mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (2, 3), (4, 5)])
LAYERS = 6


def rows(dilation: int, period: int) -> dict[int, list[int]]:
    """Which outputs are summed after which layers, as the paper has it."""
    return {
        i: [j for j in range(i + 1) if j % dilation == i % dilation] for i in range(1, LAYERS + 1) if i % period == 0
    }


@PAIRS
def test_outputs_live_as_long_as_they_are_summed(dilation: int, period: int) -> None:
    summed = rows(dilation, period)
    for one in wired("dense_former", f"dilation={dilation},period={period}", layers=LAYERS):
        wiring = one.stack.wiring
        s: Stream = wiring.open(one.x)
        for i in range(LAYERS + 1):
            if i:
                s = wiring.after_layer(i - 1, s | {"x": one.x + i})
            later = {j for row, js in summed.items() if row > i for j in js if j <= i}
            assert set(s) == {"x", *(f"output{j}" for j in later)}
            assert all(torch.equal(s[f"output{j}"], one.x + j) for j in later)


def test_parameters() -> None:
    """L(L + 3)/2 weights, that of the newest 1 and the others 0."""
    for stack in stacks(build("translation", "dense_former", layers=LAYERS)):
        weights: dict[str, Tensor] = dict(stack.wiring.weights.items())
        assert sum(len(row) for row in weights.values()) == LAYERS * (LAYERS + 3) / 2
        assert all(row.tolist() == [0] * (len(row) - 1) + [1] for row in weights.values())


def test_what_is_kept_for_the_gradient_grows_with_the_outputs_alone() -> None:
    """Each sum keeps the outputs that it is of, which the layers hold anyway, and nothing else of their size."""
    for one in wired("dense_former", layers=LAYERS):
        s = one.stack.wiring.open(one.x)
        outputs = [(one.x + i).detach().requires_grad_() for i in range(1, LAYERS + 1)]
        with kept_for_gradients(one.x.numel()) as kept:
            for i, output in enumerate(outputs):
                s = one.stack.wiring.after_layer(i, s | {"x": output})
        assert kept == {value.data_ptr() for value in (one.x, *outputs)}
