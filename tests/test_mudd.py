"""MUDDFormer: the paper's equations, and Pre-LN at the start."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tiny import build, stacks
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm
from wired_sublayers import Wired, assert_close, wired

LAYERS = 4


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, (16,), norm.weight, norm.bias, norm.eps)


def mixed(wiring: Any, i: int, outputs: list[Tensor]) -> list[Tensor]:
    """Each way: row c * (l + 2) + j of W2 is what it takes of X_j."""
    newest = outputs[-1] / (outputs[-1].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    weights = gelu(newest @ wiring.w1[i].T) @ wiring.w2[i].T
    ways, n = wiring.bias[i].shape
    return [
        sum((weights[..., c * n + j, None] + wiring.bias[i][c, j]) * x for j, x in enumerate(outputs))  # type: ignore[misc]
        for c in range(ways)
    ]


def attention(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Of two heads of eight channels, without a mask."""
    attn = layer.self_attn
    q, k, v = (
        p(x).unflatten(-1, (2, 8)).permute(1, 2, 0, 3)
        for p, x in ((attn.q_proj, q), (attn.k_proj, k), (attn.v_proj, v))
    )
    heads = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v
    return attn.out_proj(heads.permute(2, 0, 1, 3).flatten(2))  # type: ignore[no-any-return]


def equations(one: Wired) -> Tensor:
    outputs, reads, sublayers = [one.x], [one.x] * 4, iter(one.sublayers())
    for i in range(LAYERS):
        layer = one.stack[i]
        connection, _ = next(sublayers)
        *qkv, y = reads
        norms = [connection.norm, *([connection.k_norm, connection.v_norm] if i else [connection.norm] * 2)]
        y = y + attention(layer, *(normed(norm, x) for norm, x in zip(norms, qkv, strict=True)))
        for _ in layer.kinds[1:]:
            connection, f = next(sublayers)
            y = y + f(normed(connection.norm, y))
        outputs.append(y)
        reads = mixed(one.stack.wiring, i, outputs)
    return normed(one.stack.wiring.norm, reads[0])


@pytest.mark.parametrize("expand_last", ("false", "true"))
def test_equations(expand_last: str) -> None:
    for one in wired("mudd", f"expand_last={expand_last}", layers=LAYERS):
        out, expected = one.output(), equations(one)
        assert_close(out, expected)
        found, wanted = one.gradients(out), one.gradients(expected)
        assert found.keys() == wanted.keys() == {"x", *dict(one.stack.named_parameters())}
        assert_close(found, wanted)


def test_hidden_layers_are_as_wide_as_published() -> None:
    for expand, last in (("false", 5), ("true", 20)):
        for stack in stacks(build("translation", "mudd", "--residual-args", f"expand_last={expand}", layers=LAYERS)):
            assert [tuple(w2.shape) for w2 in stack.wiring.w2] == [(8, 8), (12, 12), (16, 16), (5, last)]


def test_where_the_weights_of_the_mixes_start() -> None:
    """W1 at N(0, 1 / C), here with 16 channels and 1,200 numbers in all."""
    layers = [stack.wiring for stack in stacks(build("translation", "mudd", layers=LAYERS))]
    w1 = torch.cat([weight.flatten() for wiring in layers for weight in wiring.w1])
    assert w1.numel() >= 1000 and abs(w1.std().item() - 0.25) < 0.02
    assert not any(weight.any() for wiring in layers for weight in wiring.w2)


def test_starts_as_pre_ln() -> None:
    plain, other = build("translation", "pre_ln", layers=LAYERS), build("translation", "mudd", layers=LAYERS)
    other.load_state_dict(copy.deepcopy(plain.state_dict()), strict=False)
    for one, two in zip(stacks(plain), stacks(other), strict=True):
        x, memory = torch.randn(5, 2, 16), torch.randn(6, 2, 16) if one.shape.stack == "decoder" else None
        outputs = [stack(x, memory) for stack in (one, two)]
        first, second = (out[0] if isinstance(out, tuple) else out for out in outputs)
        torch.testing.assert_close(second, first, rtol=1e-5, atol=1e-5)


def test_values_are_mixed_over_depth_too() -> None:
    """The option value_residual edits the projection of its own mix."""
    for plain, mixing in zip(
        wired("mudd", layers=LAYERS), wired("mudd", "value_residual=constant", layers=LAYERS), strict=True
    ):
        assert (plain.output() - mixing.output()).abs().max() > 0.1
