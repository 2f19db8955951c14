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


def mixed(wiring: Any, i: int, newest: Tensor, outputs: list[Tensor]) -> list[Tensor]:
    """Each way: row c * (l + 2) + j of W2 is what it takes of X_j."""
    gain = wiring.router_gain[i] if len(wiring.norms) else 1.0
    router = gain * newest / (newest.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    weights = gelu(router @ wiring.w1[i].T) @ wiring.w2[i].T
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


def reads_of(wiring: Any, i: int, y: Tensor, outputs: list[Tensor]) -> list[Tensor]:
    """What is read above layer ``i``, the residual at the fourth place or alone; with norms, mixes are added to y."""
    mixes = mixed(wiring, i, y, outputs)
    if not len(wiring.norms):
        return mixes
    residual = 3 if len(mixes) > 1 else 0
    mixes[residual] = normed(wiring.post_norms[i], mixes[residual])
    return [y + mix for mix in mixes]


def equations(one: Wired) -> Tensor:
    wiring, reads, sublayers = one.stack.wiring, [one.x] * 4, iter(one.sublayers())
    kept = (lambda j, x: normed(wiring.norms[j], x)) if len(wiring.norms) else (lambda j, x: x)
    outputs = [kept(0, one.x)]
    for i in range(LAYERS):
        layer = one.stack[i]
        connection, _ = next(sublayers)
        q, k, v, y, *cross = reads
        norms = [connection.norm, *([connection.k_norm, connection.v_norm] if i else [connection.norm] * 2)]
        y = y + attention(layer, *(normed(norm, x) for norm, x in zip(norms, (q, k, v), strict=True)))
        for kind in layer.kinds[1:]:
            connection, f = next(sublayers)
            y = y + f(normed(connection.norm, cross[0] if cross and kind == "cross" else y))
        outputs.append(kept(i + 1, y))
        reads = reads_of(wiring, i, y, outputs)
    return normed(wiring.norm, reads[0])


FORMS = ("expand_last=true", "form=pre_post_norm", "cross_query=true", "form=pre_post_norm,cross_query=true")


@pytest.mark.parametrize("options", ("", *FORMS))
def test_equations(options: str) -> None:
    for one in wired("mudd", options, layers=LAYERS):
        out, expected = one.output(), equations(one)
        assert_close(out, expected)
        found, wanted = one.gradients(out), one.gradients(expected)
        assert found.keys() == wanted.keys() == {"x", *dict(one.stack.named_parameters())}
        assert_close(found, wanted)


def test_hidden_layers_are_as_wide_as_published() -> None:
    for options, last in (("expand_last=false", 5), ("expand_last=true", 20)):
        for stack in stacks(build("translation", "mudd", "--residual-args", options, layers=LAYERS)):
            assert [tuple(w2.shape) for w2 in stack.wiring.w2] == [(8, 8), (12, 12), (16, 16), (5, last)]
    options = "expand_last=true,round_hidden=true"
    for stack in stacks(build("translation", "mudd", "--residual-args", options, layers=16)):
        assert [w2.shape[1] for w2 in stack.wiring.w2] == [64] * 14 + [128, 128]  # of 16 outputs, 64 becomes 128


def test_only_a_decoder_with_cross_attention_has_a_fifth_mix() -> None:
    encoder, decoder = stacks(build("translation", "mudd", "--residual-args", "cross_query=true", layers=LAYERS))
    (alone,) = stacks(build("language_modeling", "mudd", "--residual-args", "cross_query=true", layers=LAYERS))
    assert [[len(bias) for bias in stack.wiring.bias] for stack in (encoder, decoder, alone)] == [
        [4, 4, 4, 1],
        [5, 5, 5, 1],
        [4, 4, 4, 1],
    ]


def test_where_the_weights_of_the_mixes_start() -> None:
    """W1 at N(0, 1 / C), here with 16 channels and 1,200 numbers in all."""
    layers = [stack.wiring for stack in stacks(build("translation", "mudd", layers=LAYERS))]
    w1 = torch.cat([weight.flatten() for wiring in layers for weight in wiring.w1])
    assert w1.numel() >= 1000 and abs(w1.std().item() - 0.25) < 0.02
    assert not any(weight.any() for wiring in layers for weight in wiring.w2)


@pytest.mark.parametrize("options", ("", "form=pre_post_norm"))
def test_starts_as_pre_ln(options: str) -> None:
    plain = build("translation", "pre_ln", layers=LAYERS)
    other = build("translation", "mudd", "--residual-args", options, layers=LAYERS)
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
