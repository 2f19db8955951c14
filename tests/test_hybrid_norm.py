"""HybridNorm: which norms it has, and that its star keeps what every variant promises."""

from __future__ import annotations

import pytest
import torch
from tiny import batch, build, logits, perturb, stacks, step_by_step
from torch import nn


def build_hybrid(form: str, args: str = "", task: str = "translation", *flags: str) -> nn.Module:
    given = ",".join(filter(None, (f"first_layer={form}", args)))
    return perturb(build(task, "hybrid_norm", "--residual-args", given, *flags, layers=3))


@pytest.mark.parametrize("kind", ("layer", "rms", "dyt"))
def test_the_heads_share_one_gain_and_there_is_no_bias(kind: str) -> None:
    stack = stacks(build_hybrid("plain", f"norm={kind}", "language_modeling"))[0]
    names = {"weight", "alpha"} if kind == "dyt" else {"weight"}
    for norm in (getattr(stack[1].self_attn_connection, f"{part}_norm") for part in "qkv"):
        assert {name for name, _ in norm.named_parameters()} == names
        assert norm.weight.shape == (stack.shape.dim // stack.shape.heads,)


def test_norms_before_attention_are_the_stars() -> None:
    def norms(form: str) -> set[str]:
        state = build_hybrid(form).state_dict()
        return {name.removesuffix(".weight") for name in state if name.endswith("attn_layer_norm.weight")}

    assert norms("plain") == set()
    assert norms("star") == {
        "encoder.layers.0.self_attn_layer_norm",
        "decoder.layers.0.self_attn_layer_norm",
        "decoder.layers.0.encoder_attn_layer_norm",
    }


@pytest.mark.parametrize("task", ("translation", "language_modeling", "speech"))
def test_the_star_keeps_the_contract(task: str) -> None:
    model, inputs = build_hybrid("star", "value_residual=learnable", task), batch(task)
    full = logits(model, task, inputs)
    full.log_softmax(-1).square().mean().backward()
    unreached = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert unreached == []
    torch.testing.assert_close(step_by_step(model, task, inputs), full, rtol=1e-4, atol=2e-5)
    saving = build_hybrid("star", "value_residual=learnable", task, "--checkpoint-activations").train()
    logits(saving, task, inputs).log_softmax(-1).square().mean().backward()
    for (name, p), q in zip(model.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-6, msg=name)
