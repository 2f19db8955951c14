"""ODE Transformer: steps of Runge and Kutta's on what a layer adds, or as its authors coded them on all it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import batch, build, logits, stacks
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from wired_sublayers import Wired, assert_close, wired

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context

LAYERS = 3
F = Callable[[Tensor], Tensor]


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, (16,), norm.weight, norm.bias, norm.eps)


def layers(one: Wired) -> list[F]:
    """What each Pre-LN layer adds to its input."""
    sublayers = one.sublayers()
    n_sub = len(sublayers) // LAYERS

    def added(i: int, x: Tensor) -> Tensor:
        z = x
        for connection, f in sublayers[i * n_sub : (i + 1) * n_sub]:
            z = z + f(normed(connection.norm, z))
        return z - x

    return [lambda x, i=i: added(i, x) for i in range(LAYERS)]


def euler(f: F, x: Tensor, wiring: Any) -> Tensor:
    return x + f(x)


def heun(f: F, x: Tensor, wiring: Any) -> Tensor:
    k1 = f(x)
    return x + 0.5 * (k1 + f(x + k1))


def gated(f: F, x: Tensor, wiring: Any) -> Tensor:
    k1 = f(x)
    k2 = f(x + k1)
    (w1, w2), b = wiring.gate.weight[0].chunk(2), wiring.gate.bias
    g = 1 / (1 + torch.exp(-(k1 @ w1 + k2 @ w2 + b)))[..., None]
    return x + g * k1 + (1 - g) * k2


def alpha(f: F, x: Tensor, wiring: Any) -> Tensor:
    k1 = f(x)
    return x + wiring.alpha[0] * k1 + wiring.alpha[1] * f(x + k1)


def classical(f: F, x: Tensor, wiring: Any) -> Tensor:
    k1 = f(x)
    k2 = f(x + k1 / 2)
    k3 = f(x + k2 / 2)
    return x + k1 / 6 + k2 / 3 + k3 / 3 + f(x + k3) / 6


STEPS = {
    ("ode_rk2", "mode=standard"): heun,
    ("ode_rk2", "mode=gated"): gated,
    ("ode_rk2", "mode=alpha"): alpha,
    ("ode_rk4", ""): classical,
}


@pytest.mark.parametrize("dlcl", (False, True))
@pytest.mark.parametrize("identity", (False, True))
@pytest.mark.parametrize(("name", "mode"), STEPS)
def test_equations(name: str, mode: str, identity: bool, dlcl: bool) -> None:
    """In the encoder; the decoder's layers are those of Pre-LN."""
    args = [mode] if mode else []
    args += [f"inner_identity={str(identity).lower()}", f"dlcl={str(dlcl).lower()}"]
    for one in wired(name, ",".join(args), layers=LAYERS):
        wiring, decoder = one.stack.wiring, one.memory is not None
        x, history = one.x, [one.x]
        if dlcl:
            x = wiring.history.weight[0, 0] * x
        for i, f in enumerate(layers(one)):
            g: F = (lambda z, f=f: f(z) + z) if identity and not decoder else f
            x = (euler if decoder else STEPS[name, mode])(g, x, wiring)
            if dlcl:
                history.append(normed(wiring.history.norms[str(i + 1)], x))
                x = sum(w * y for w, y in zip(wiring.history.weight[i + 1], history, strict=False))  # type: ignore[assignment]
        expected, out = normed(wiring.norm, x), one.output()
        assert_close(out, expected)
        assert_close(one.gradients(out), one.gradients(expected))


def test_order_of_the_error() -> None:
    """On x' = x, whose solution after a step of 1 is e x: Taylor's first terms."""
    x = torch.ones(1, 1, 16)
    for name, expected in (("ode_rk2", 2.5), ("ode_rk4", 1 + 1 + 1 / 2 + 1 / 6 + 1 / 24)):
        encoder, _ = stacks(build("translation", name))
        torch.testing.assert_close(encoder.wiring.step(lambda z: z, x), torch.full_like(x, expected))


@pytest.mark.parametrize(("name", "evaluations"), [("ode_rk2", 2), ("ode_rk4", 4)])
def test_only_the_encoders_layers_are_evaluated_several_times(name: str, evaluations: int) -> None:
    model = build("translation", name, layers=LAYERS)
    calls = {"encoder": 0, "decoder": 0}
    for stack in stacks(model):
        for i in range(LAYERS):

            def count(module: nn.Module, inputs: Any, output: Any, side: str = stack.shape.stack) -> None:
                calls[side] += 1

            stack[i].ffn_connection.register_forward_hook(count)
    logits(model, "translation", batch("translation"))
    assert calls == {"encoder": evaluations * LAYERS, "decoder": LAYERS}


def test_dropout_is_drawn_anew_in_each_evaluation() -> None:
    encoder, _ = stacks(build("translation", "ode_rk2", "--dropout", "0.5", layers=1).train())
    drawn: list[Tensor] = []
    encoder[0].ffn_connection.register_forward_hook(lambda m, i, o: drawn.append(o[0]["x"] - i[0]["x"]))
    encoder[0]({"x": torch.randn(9, 2, 16)}, Context())
    first, second = (x.eq(0) for x in drawn)
    assert 0.2 < first.float().mean() < 0.8 and not torch.equal(first, second)


def test_a_language_model_is_refused() -> None:
    with pytest.raises(UserError, match="a language model has none"):
        build("language_modeling", "pre_ln", "--residual", "ode_rk2")


def test_a_gate_is_one_for_all_layers_and_of_the_encoder_alone() -> None:
    for mode, names in (("standard", set()), ("gated", {"gate.weight", "gate.bias"}), ("alpha", {"alpha"})):
        encoder, decoder = stacks(build("translation", "ode_rk2", "--residual-args", f"mode={mode}"))
        own = {"norm.weight", "norm.bias"}
        assert {name for name, _ in encoder.wiring.named_parameters()} == own | names
        assert {name for name, _ in decoder.wiring.named_parameters()} == own
