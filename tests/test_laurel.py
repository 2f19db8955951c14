"""LAuReL: the paper's equations, Pre-LN at the start, and Gemma 3n's form."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny import build, stacks
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from wired_sublayers import Wired, assert_close, wired

LAYERS = 4


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
    for one in wired(name, args, layers=LAYERS):
        out, expected = one.output(), equations(one, k)
        assert_close(out, expected)
        found, wanted = one.gradients(out), one.gradients(expected)
        assert found.keys() == wanted.keys() == {"x", *dict(one.stack.named_parameters())}
        assert_close(found, wanted)


@pytest.mark.parametrize("args", ("", "past=2,rank=3,rw=true", "past=2,rank=0"))
def test_depth_mup_divides_all_that_is_added_to_x(args: str) -> None:
    """a y and b g, at m = 4; b x is no branch."""
    for one in wired("laurel_pa", ",".join(filter(None, (args, "depth_mup=0.5,base_depth=1"))), layers=LAYERS):
        outputs = [one.x]
        for connection, f in one.sublayers():
            x, y = outputs[-1], f(normed(connection.norm, outputs[-1]))
            recent = outputs[::-1][: connection.past]
            g: Tensor = sum((c * old for c, old in zip(connection.c, recent, strict=True)), torch.zeros_like(x))
            g = g if connection.low_rank is None else connection.low_rank(g)
            a, b = (1.0, 1.0) if connection.weights is None else 2 * connection.weights.softmax(0)
            outputs.append(a * y / 2 + b * (x + g / 2))
        assert_close(one.output(), normed(one.stack.wiring.norm, outputs[-1]))


@pytest.mark.parametrize("name", ("laurel_rw", "laurel_lr", "laurel_pa"))
def test_starts_as_pre_ln(name: str) -> None:
    """Bit for bit: a = b = 1, B = 0, c = 0."""
    plain, other = build("translation", "pre_ln"), build("translation", name)
    other.load_state_dict(copy.deepcopy(plain.state_dict()), strict=False)
    for one, two in zip(stacks(plain), stacks(other), strict=True):
        x, memory = torch.randn(5, 2, 16), torch.randn(6, 2, 16) if one.shape.stack == "decoder" else None
        outputs = [stack(x, memory) for stack in (one, two)]
        first, second = (out[0] if isinstance(out, tuple) else out for out in outputs)
        assert torch.equal(first, second)


@pytest.mark.parametrize("rule", ("fairseq", "xavier", "lipschitz", "small"))
def test_what_starts_at_zero_does_under_every_rule(rule: str) -> None:
    for stack in stacks(build("translation", "laurel_lr", "--residual-args", f"init={rule}")):
        maps = [m for name, m in stack.named_parameters() if ".low_rank." in name]
        down, up = maps[::2], maps[1::2]
        assert all(p.abs().max() > 0 for p in down) and not any(p.any() for p in up)


def test_gemmas_form() -> None:
    for one in wired("laurel_gemma", "rank=3", layers=LAYERS):
        x = one.x
        for connection, f in one.sublayers():
            u = normed(connection.norm, x)
            y = normed(connection.out_norm, f(u))
            if connection.site.kind == "self":
                low_rank = u @ connection.low_rank.down.weight.T @ connection.low_rank.up.weight.T
                x = (x + y + u + normed(connection.low_rank_norm, low_rank)) / 2**0.5
            else:
                x = x + y
        assert_close(one.output(), normed(one.stack.wiring.norm, x))
