"""The option ``gpas``: the stream scaled by learned gates, the gradient not."""

from __future__ import annotations

import pytest
import torch
from tiny import batch, build, logits, perturb, step_by_step
from torch import Tensor, nn
from torch.nn.functional import silu

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.gpas import ActivationScaling
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring

GATED = [(name, "") for name in sorted(VARIANTS) if VARIANTS[name].summation != "none"] + [("realformer", "norm=pre")]


def gated(name: str, args: str, *flags: str) -> nn.Module:
    options = ",".join(filter(None, (args, "gpas=layer")))
    return perturb(build("translation", name, "--residual-args", options, *flags))


def set_gates(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gpas.gate"):
                parameter.fill_(value)


def loss_and_gradients(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    out = logits(model, "translation", batch("translation"))
    out.log_softmax(-1).square().mean().backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_only_the_gate_sees_the_scale() -> None:
    """S(x) = (1 - silu(a)) x, dS/dx = 1, dL/da = -silu'(a) sum(x dL/dS)."""
    scaling = ActivationScaling().double()
    scaling.gate.data.fill_(0.7)
    x, weight = (torch.randn(4, 2, 5, dtype=torch.double, requires_grad=True) for _ in range(2))
    y = scaling(x)
    torch.testing.assert_close(y, (1 - silu(torch.tensor(0.7, dtype=torch.double))) * x)
    (y * weight).sum().backward()
    assert torch.equal(x.grad, weight.detach())  # type: ignore[arg-type]
    a = torch.tensor(0.7, dtype=torch.double, requires_grad=True)
    silu(a).backward()
    torch.testing.assert_close(scaling.gate.grad, -a.grad * (x * weight).sum().detach())  # type: ignore[operator]


@pytest.mark.parametrize(("name", "args"), GATED)
def test_without_scale_nothing_changes(name: str, args: str) -> None:
    """Bit for bit at a = 0, where the gates have gradients; then, that every gate acts and that decoding is right."""
    plain = perturb(build("translation", name, "--residual-args", args))
    model = gated(name, args)
    model.load_state_dict(model.state_dict() | plain.state_dict())
    set_gates(model, 0.0)
    expected, found = loss_and_gradients(plain), loss_and_gradients(model)
    assert torch.equal(found[0], expected[0])
    gates = {key: value for key, value in found[1].items() if key.endswith("gpas.gate")}
    assert len(gates) == 4 and all(value.shape == () and value != 0 for value in gates.values())
    torch.testing.assert_close(found[1], expected[1] | gates, rtol=0, atol=0)
    set_gates(model, 0.4)
    inputs = batch("translation")
    full = logits(model, "translation", inputs)
    assert (full - expected[0]).abs().max() > 1e-3
    torch.testing.assert_close(step_by_step(model, "translation", inputs), full, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("name", "args"), GATED)
def test_recomputed_activations(name: str, args: str) -> None:
    plain, saving = (
        loss_and_gradients(gated(name, args, *flags).train())[1] for flags in ((), ("--checkpoint-activations",))
    )
    torch.testing.assert_close(saving, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", sorted(name for name in VARIANTS if VARIANTS[name].summation == "none"))
def test_refused_where_the_stream_is_no_sum(name: str) -> None:
    with pytest.raises(UserError, match=f"wiring '{name}' cannot take option gpas, for its stream is not one sum"):
        Wiring.parse(name, "gpas=layer").check("decoder", 2, alone=False)
