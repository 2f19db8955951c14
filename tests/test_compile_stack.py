"""--compile-stack: what is compiled, how often, and that nothing else changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tiny import batch, build, logits, perturb, settings, stacks
from tiny_trainer import SGD, make_trainer
from torch import Tensor, nn
from torch._dynamo.utils import counters

from fairseq_residuals.plugin.models import builder
from fairseq_residuals.plugin.speed import compile_layers
from fairseq_residuals.wirings.core.errors import UserError

FLAG = "--compile-stack"


@pytest.fixture(autouse=True)
def graphs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for inductor, but no code is made."""
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(compile_layers, "BACKEND", "eager")


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


def step(model: nn.Module, inputs: dict[str, Tensor], task: str = "translation") -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    out = logits(model, task, inputs)
    out.log_softmax(-1).square().mean().backward()
    return out.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_step(model: nn.Module, plain: nn.Module, inputs: dict[str, Tensor], task: str = "translation") -> None:
    (out, gradients), (expected, gradients_expected) = step(model, inputs, task), step(plain, inputs, task)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert gradients.keys() == gradients_expected.keys()
    for name, gradient in gradients_expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_layers_of_one_kind_share_their_code_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_layers, "BACKEND", "aot_eager")
    model, plain = (perturb(build("translation", "pre_ln", *flags, layers=3)).train() for flags in ((FLAG,), ()))
    for sentences in (3, 5, 2, 6):
        assert_same_step(model, plain, batch("translation", sentences, seed=sentences))
        # the encoder's layers, the decoder's, and its last, whose attention weights fairseq asks for
        assert compilations() == 3


def test_only_steps_of_training_are_compiled() -> None:
    model, inputs = perturb(build("translation", "pre_ln", FLAG)), batch("translation")
    logits(model, "translation", inputs).sum().backward()
    with torch.no_grad():
        logits(model.train(), "translation", inputs)
    assert compilations() == 0
    step(model, inputs)
    assert compilations() == 3


def test_a_layer_with_hooks_runs_as_it_is() -> None:
    model, plain = (perturb(build("translation", "pre_ln", *flags)).train() for flags in ((FLAG,), ()))
    seen: list[Any] = []
    for stack in stacks(model):
        for i in range(len(stack)):
            stack[i].ffn_connection.register_forward_hook(lambda module, args, out: seen.append(module))
    assert_same_step(model, plain, batch("translation"))
    assert len(seen) == 4 and compilations() == 0


def test_with_activation_checkpointing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_layers, "BACKEND", "aot_eager")
    saving, plain = (
        perturb(build("language_modeling", "resi_dual", *flags)).train()
        for flags in ((FLAG, "--checkpoint-activations"), ())
    )
    assert_same_step(saving, plain, batch("language_modeling"), "language_modeling")
    assert compilations() == 1


def test_with_layer_dropout() -> None:
    flags = ("--encoder-layerdrop", "0.5", "--decoder-layerdrop", "0.5")
    models = [perturb(build("translation", "b2t", *flags, *more, layers=4)).train() for more in ((FLAG,), ())]
    inputs, found = batch("translation"), []
    for model in models:
        torch.manual_seed(3)
        found.append([logits(model, "translation", inputs).detach() for _ in range(3)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert compilations() > 0


def test_state_and_copies_are_those_of_a_plain_model() -> None:
    model, plain = build("translation", "pre_ln", FLAG).train(), build("translation", "pre_ln")
    step(model, batch("translation"))
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in plain.named_parameters()]
    twin = copy.deepcopy(model)
    step(twin, batch("translation"))
    assert compilations() == 3


def test_without_a_compiler_training_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_layers, "BACKEND", "inductor")
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "no-such-compiler"))
    trainer = make_trainer(*SGD, FLAG)
    with pytest.raises(UserError, match=r"cannot make code for cpu here .*no-such-compiler"):
        trainer.load_checkpoint("none.pt")
    # a model without the flag is not tried
    make_trainer(*SGD).load_checkpoint("none.pt")


def test_a_value_in_a_yaml_file_is_true_or_false() -> None:
    args = settings("transformer_b2t_6l", FLAG)
    assert args.compile_stack is True
    builder.wirings_of(OmegaConf.create({"_name": "transformer_b2t_6l", "compile_stack": True}))
    with pytest.raises(UserError, match="--compile-stack must be true or false"):
        builder.wirings_of(OmegaConf.create({"_name": "transformer_b2t_6l", "compile_stack": "yes"}))
