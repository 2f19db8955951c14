"""SiameseNorm: its two streams by the paper's algorithm, Pre-LN as a special case, and its scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import build, stacks
from torch import Tensor
from torch.nn.functional import layer_norm
from wired_sublayers import assert_close, wired

LAYERS = 3


def ln(norm: Any, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-5)


@pytest.mark.parametrize("scale", ["code", "paper"])
def test_equations(scale: str) -> None:
    """In the paper's order: x is normalised after a sub-layer, which is before the next one."""
    for one in wired("siamese_norm", f"scale={scale}", layers=LAYERS):
        sublayers, top = one.sublayers(), one.stack.wiring
        n_sub = len(sublayers) // LAYERS
        x, y = ln(sublayers[0][0].post_norm, one.x), one.x
        after = [connection.post_norm for connection, _ in sublayers[1:]] + [top.post_norm]
        for k, ((connection, f), norm) in enumerate(zip(sublayers, after, strict=True)):
            o = f(ln(connection.norm, x + ln(connection.pre_norm, y)))
            c = (2 * (k // n_sub + 1)) ** 0.5 if scale == "code" else (k + 1) ** 0.5
            x, y = ln(norm, x + o / c), y + o
        expected = ln(top.norm, x + ln(top.pre_norm, y))
        assert_close(one.output(), expected)
        found, wanted = one.gradients(one.output()), one.gradients(expected)
        assert found.keys() == wanted.keys() == {"x", *dict(one.stack.named_parameters())}
        assert_close(found, wanted)


def attention(attn: Any, connection: Any, h: Tensor, memory: Tensor) -> Tensor:
    """With norms over the channels of each head on queries, keys and values."""

    def normalised(norm: Any, x: Tensor) -> Tensor:
        return layer_norm(x.unflatten(-1, (2, 8)), (8,), norm.weight, None, 1e-5)

    q = normalised(connection.q_norm, attn.q_proj(h))
    k = normalised(connection.k_norm, attn.k_proj(memory))
    v = normalised(connection.v_norm, attn.v_proj(memory))
    weights = torch.einsum("tbhc,sbhc->bhts", q, k).mul(8**-0.5).softmax(-1)
    return attn.out_proj(torch.einsum("bhts,sbhc->tbhc", weights, v).flatten(-2))


def test_equations_with_hybrid_norm() -> None:
    """As the authors' language models have it: attention without norms of x and of what it is fed."""
    for one in wired("siamese_norm", "post_stream=hybrid_norm", layers=LAYERS):
        x = y = one.x
        for i in range(LAYERS):
            layer, c = one.stack[i], (2 * (i + 1)) ** 0.5
            for attn, connection in (
                (layer.self_attn, layer.self_attn_connection),
                (layer.encoder_attn, getattr(layer, "encoder_attn_connection", None)),
            ):
                if attn is not None:
                    h = connection.gain * x + ln(connection.pre_norm, y)
                    o = attention(attn, connection, h, h if attn is layer.self_attn else one.memory)
                    x, y = x + o / c, y + o
            connection = layer.ffn_connection
            x = ln(connection.post_norm, x)
            o = layer.fc2(layer.fc1(ln(connection.norm, x + ln(connection.pre_norm, y))).relu())
            x, y = x + o / c, y + o
        top = one.stack.wiring
        expected = ln(top.norm, ln(top.post_norm, x) + ln(top.pre_norm, y))
        assert_close(one.output(), expected)
        found, wanted = one.gradients(one.output()), one.gradients(expected)
        assert found.keys() == wanted.keys() == {"x", *dict(one.stack.named_parameters())}
        assert_close(found, wanted)


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


@pytest.mark.parametrize(
    ("scale", "stack", "expected"),
    [
        ("code", 0, [2, 2, 4, 4, 6, 6]),
        ("paper", 0, [1, 2, 3, 4, 5, 6]),
        ("code", 1, [2, 2, 2, 4, 4, 4, 6, 6, 6]),
        ("paper", 1, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_what_each_stream_receives(scale: str, stack: int, expected: list[int]) -> None:
    one = wired("siamese_norm", f"scale={scale}", layers=LAYERS)[stack]
    nothing = torch.zeros_like(one.x)
    for (connection, _), squared in zip(one.sublayers(), expected, strict=True):
        s = connection.write({"x": nothing, "y": nothing}, one.x)
        assert_close(s["x"] * squared**0.5, one.x)
        assert torch.equal(s["y"], one.x)


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
