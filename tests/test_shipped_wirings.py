"""Wirings of released models: what they are at the start, and what their equations imply."""

from __future__ import annotations

import pytest
import torch
from sublayers import Wired, assert_close, wired
from tiny import TASKS, batch, build, logits, perturb, stacks
from torch import Tensor, nn

from fairseq_residuals.core.layer import CONNECTIONS

# at the start each computes what another does, whose parameters it has among others
STARTS = [
    ("zaya_residual", "", "pre_ln"),
    ("residual_multiplier", "multiplier=1", "pre_ln"),
    ("layer_scalar", "", "sandwich_ln"),
]


def logits_with_values_of(other: nn.Module, task: str, name: str, args: str) -> Tensor:
    model = build(task, name, "--residual-args", args, layers=3)
    model.load_state_dict(model.state_dict() | other.state_dict())
    return logits(model, task, batch(task))


@torch.no_grad()
@pytest.mark.parametrize(("name", "args", "other"), STARTS)
@pytest.mark.parametrize("task", TASKS)
def test_start(task: str, name: str, args: str, other: str) -> None:
    """Bit for bit."""
    plain = perturb(build(task, other, layers=3))
    assert torch.equal(logits_with_values_of(plain, task, name, args), logits(plain, task, batch(task)))


def parallel_by_hand(w: Wired, norms: int, cross: str) -> Tensor:
    x, places = w.x, w.sublayers()
    per_layer = len(places) // 3
    for start in range(0, len(places), per_layer):
        layer = places[start : start + per_layer]
        if cross == "sequential" and per_layer == 3:
            c, f = layer.pop(0)
            x = x + f(c.norm(x))
        first = layer[0][0].norm
        x = x + sum(f((first if norms == 1 else c.norm)(x)) for c, f in layer)
    return w.stack.wiring.norm(x)  # type: ignore[no-any-return]


@torch.no_grad()
@pytest.mark.parametrize("cross", ["parallel", "sequential"])
@pytest.mark.parametrize("norms", [1, 2])
def test_equation_of_parallel(norms: int, cross: str) -> None:
    for w in wired("parallel", f"norms={norms},cross={cross}"):
        assert_close(w.output(), parallel_by_hand(w, norms, cross))
        has_norm = [connection.norm is not None for connection, _ in w.sublayers()]
        of_a_layer = {2: [True, norms == 2], 3: [True, norms == 2 or cross == "sequential", norms == 2]}
        assert has_norm == 3 * of_a_layer[len(has_norm) // 3]


@torch.no_grad()
def test_one_norm_is_two_equal_norms() -> None:
    for one, two in zip(wired("parallel"), wired("parallel", "norms=2"), strict=True):
        two.stack.load_state_dict(one.stack.state_dict(), strict=False)
        for i in range(3):
            for kind in one.stack[i].kinds:
                norm = getattr(two.stack[i], CONNECTIONS[kind]).norm
                norm.load_state_dict(one.stack[i].self_attn_connection.norm.state_dict())
        assert_close(two.output(), one.output())


@torch.no_grad()
@pytest.mark.parametrize("dropout", ["after_norm", "before_norm"])
def test_beam_computes_what_a_sandwich_does(dropout: str) -> None:
    """Of the same weights, but for eps; its stream is that of the sandwich over sqrt(k)."""
    options = f"dropout={dropout}"
    for beam, plain in zip(
        wired("beam_residual", options, eps=1e-12), wired("sandwich_ln", options, eps=1e-12), strict=True
    ):
        assert_close(beam.output(), plain.output())
        k = 1 + len(beam.sublayers())
        assert_close(k**0.5 * top_of(beam), top_of(plain))


def top_of(w: Wired) -> Tensor:
    """Return what the last layer gives."""
    seen: list[Tensor] = []
    w.stack[len(w.stack) - 1].register_forward_hook(lambda module, args, out: seen.append(out[0]["x"]))
    w.output()
    return seen[0]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("depth_scaled=true", {"self": 0.5, "cross": 0.5, "ffn": 0.5}),
        ("depth_scaled=0.2", {"self": 0.1, "cross": 0.1, "ffn": 0.1}),
        ("depth_scaled=pangu", {"self": 0.283 / 2, "cross": 0.283 / 2, "ffn": 0.432 / 2}),
        ("depth_scaled=true,depth_count=sublayers", {"self": 6**-0.5, "cross": 6**-0.5, "ffn": 6**-0.5}),
        ("", {"self": 1.0, "cross": 1.0, "ffn": 1.0}),
    ],
)
def test_depth_scaled_gains(args: str, expected: dict[str, float]) -> None:
    """c / sqrt(L) with 4 layers, which in the decoder have 12 sub-layers."""
    decoder = stacks(build("translation", "sandwich_ln", "--residual-args", args, layers=4))[1]
    for i in range(4):
        for kind, value in expected.items():
            connection = getattr(decoder[i], CONNECTIONS[kind])
            assert_close(connection.out_norm.weight, torch.full((16,), value))
            assert_close(connection.norm.weight, torch.ones(16))


@torch.no_grad()
@pytest.mark.parametrize("name", ["residual_multiplier", "sandwich_ln", "peri_ln"])
def test_multiplier_is_outside_of_the_norm(name: str) -> None:
    """With 0 nothing is added to the stream, and with 2 twice as much by a layer."""
    seen: list[Tensor] = []
    for multiplier in (0, 1, 2):
        (encoder, _) = wired(name, f"multiplier={multiplier}", layers=1)
        encoder.stack.ffn_connection = None
        layer = encoder.stack[0]
        layer.kinds = ["self"]
        layer.register_forward_hook(lambda module, args, out: seen.append(out[0]["x"] - args[0]["x"]))
        encoder.output()
    assert_close(seen[0], torch.zeros_like(seen[0]))
    assert_close(seen[2], 2 * seen[1])


def test_minicpms_rule() -> None:
    """1.4 / sqrt(L), L of each stack; at 40 layers Granite's 0.22 (Hu et al. 2024)."""
    model = build("translation", "residual_multiplier", "--residual-args", "multiplier=depth", layers=4)
    for stack in stacks(model):
        assert {stack[i].ffn_connection.multiplier for i in range(4)} == {0.7}
    assert round(1.4 / 40**0.5, 2) == 0.22
