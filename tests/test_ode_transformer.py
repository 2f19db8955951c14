"""ODE Transformer: how often layers and dropout are evaluated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import batch, build, logits, stacks
from torch import Tensor, nn

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context

LAYERS = 3


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
