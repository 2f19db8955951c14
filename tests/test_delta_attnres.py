"""Delta Attention Residuals: the paper's equations, full and in blocks, and Pre-LN at the start."""

from __future__ import annotations

import pytest
import torch
from test_attention_residuals import ask, average
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from wired_sublayers import Wired, assert_close, wired

LAYERS = 6


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, (16,), norm.weight, norm.bias, norm.eps)


def full(one: Wired) -> Tensor:
    x, added = one.x, [one.x]
    for k, (connection, f) in enumerate(one.sublayers()):
        y = f(normed(connection.norm, x + average(connection.over_depth, added) if k else x))
        x, added = x + y, [*added, y]
    return normed(one.stack.wiring.norm, x)


def in_blocks(one: Wired, block: int, as_coded: bool) -> Tensor:
    """Sources are the embedding and what each block of layers added to it."""
    n_sub, x = len(one.stack[0].kinds), one.x
    sources: list[Tensor] = []
    starts: list[Tensor] = []
    for k, (connection, f) in enumerate(one.sublayers()):
        y = f(normed(connection.norm, x + average(connection.over_depth, sources) if k else x))
        if k % (n_sub * block) == 0:
            before = (sources if as_coded else starts)[-1] if sources else torch.zeros_like(x)
            sources, starts = [*sources, x - before], [*starts, x]
        x = x + y
    return normed(one.stack.wiring.norm, x)


@pytest.mark.parametrize("as_coded", (False, True))
@pytest.mark.parametrize("block", (0, 1, 2, 4, 100))
def test_equations(block: int, as_coded: bool) -> None:
    args = f"block={block},as_coded={str(as_coded).lower()}"
    for one in map(ask, wired("delta_attnres", args, layers=LAYERS)):
        out = one.output()
        expected = in_blocks(one, block, as_coded) if block else full(one)
        assert_close(out, expected)
        found, wanted = one.gradients(out), one.gradients(expected)
        assert found.keys() == wanted.keys()
        assert_close(found, wanted)


def test_blocks_are_as_coded_until_the_third_source() -> None:
    for layers, equal in ((2, True), (3, False)):
        plain, coded = (
            [ask(one).output() for one in wired("delta_attnres", f"block=1,as_coded={coded}", layers=layers)]
            for coded in ("false", "true")
        )
        assert [torch.allclose(a, b) for a, b in zip(plain, coded, strict=True)] == [equal, equal]


def start(name: str, args: str = "") -> list[Tensor]:
    """With the values of Pre-LN, and queries of 0."""
    outputs = []
    for one in wired(name, args, layers=4, eps=1e-14, like="pre_ln"):
        for connection, _ in one.sublayers():
            if getattr(connection, "over_depth", None) is not None:
                nn.init.zeros_(connection.over_depth.query)
        outputs.append(one.output())
    return outputs


def test_starts_as_pre_ln_unless_in_blocks() -> None:
    for out, expected in zip(start("delta_attnres"), start("pre_ln"), strict=True):
        assert_close(out, expected)
    for out, expected in zip(start("delta_attnres", "block=1"), start("pre_ln"), strict=True):
        assert (out - expected).abs().max() > 0.1
