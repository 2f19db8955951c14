"""HybridNorm: which norms it has."""

from __future__ import annotations

import pytest
from tiny import build, perturb, stacks
from torch import nn


def build_hybrid(form: str, args: str = "", task: str = "translation") -> nn.Module:
    given = ",".join(filter(None, (f"first_layer={form}", args)))
    return perturb(build(task, "hybrid_norm", "--residual-args", given, layers=3))


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
