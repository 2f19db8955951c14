"""What papers and code say of single variants, beyond what goldens of their defaults cover."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_norm_types import Called, assert_norms, short
from tiny import TASKS, batch, build, choices, logits, perturb, stacks, step_by_step
from torch import Tensor, nn
from wired_sublayers import assert_close, wired

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import Context
from fairseq_residuals.wirings.core.registry import VARIANTS

UNITS = ("self_attn_connection", "encoder_attn_connection")
OPTIONS = [(name, choice) for name in sorted(VARIANTS) for choice in ("", *choices(name))]


@pytest.mark.parametrize(("name", "choice"), OPTIONS)
def test_every_choice_trains_and_decodes(name: str, choice: str) -> None:
    model = perturb(build("translation", name, "--residual-args", f"{choice},{short(name, 'rms')}"))
    assert name in repr(model)  # which fairseq-train logs
    inputs = batch("translation")
    with Called() as called:
        out = logits(model, "translation", inputs)
    assert_norms(model, name, called)
    out.log_softmax(-1).square().mean().backward()
    unreachable = ["k_proj.bias"]
    if choice == "share=none":
        # a first layer with gates of its own forgets a cell that is zero
        unreachable += [f"0.{place}.unit.gates.norms.1.{p}" for place in UNITS for p in ("weight", "bias")]
    if (name, choice) == ("delta_attnres", "block=1"):
        # the softmax over one source, of the first block, is 1
        places = ("0.encoder_attn", "0.ffn", "1.self_attn")
        unreachable += [f"{place}_connection.over_depth.{p}" for place in places for p in ("query", "key_gain")]
    if name == "layer_scalar":
        # a norm follows, which takes the factor out again: what is left of the gradient is rounding
        unreachable.append("1.ffn_connection.scalar")
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter_name.endswith(tuple(unreachable)):
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, parameter_name
    torch.testing.assert_close(step_by_step(model, "translation", inputs), out, rtol=1e-4, atol=2e-5)


def test_the_choices_are_those_of_the_variants() -> None:
    assert {"weights=fixed_one", "weight_type=vector", "softmax=true", "norm=false", "window=1"} <= set(
        choices("dlcl_pre")
    )
    assert {"share=all", "share=none", "merge=concat", "hidden=1"} <= set(choices("depthwise_lstm"))


def outputs(stack: Any, x: Tensor) -> list[Tensor]:
    """The stack's layers run one by one without any wiring between them: each is fed what ``stack`` feeds it."""
    seen: list[Tensor] = []
    handles = [stack[i].register_forward_hook(lambda _, __, out: seen.append(out[0]["x"])) for i in range(len(stack))]
    with torch.no_grad():
        stack(x)
    for handle in handles:
        handle.remove()
    return seen


def test_where_the_weights_of_dlcl_start() -> None:
    start = {
        args: stacks(build("translation", "dlcl_post", "--residual-args", args, layers=3))[0].wiring.weight
        for args in ("", "window=2", "weights=fixed_one", "weight_type=vector")
    }
    thirds, halves = 1 / 3, 1 / 2
    rows = torch.tensor([[1, 0, 0, 0], [halves, halves, 0, 0], [thirds, thirds, thirds, 0], [0.25] * 4])
    torch.testing.assert_close(start[""].squeeze(-1), rows)
    rows = torch.tensor([[1, 0, 0, 0], [halves, halves, 0, 0], [0, halves, halves, 0], [0, 0, halves, halves]])
    torch.testing.assert_close(start["window=2"].squeeze(-1), rows)
    assert not start["weights=fixed_one"].requires_grad and start["weight_type=vector"].shape == (4, 4, 16)


def test_transparent_attention_gives_each_decoder_layer_its_mix() -> None:
    model = perturb(build("translation", "transparent_attention", "--decoder-layers", "4", layers=3), scale=0.5)
    encoder, decoder = stacks(model)
    assert encoder.wiring.weight.shape == (4, 4)
    x = torch.randn(6, 2, 16)
    layers = [encoder.wiring.embed_norm(x), *outputs(encoder, x)]
    fed = {}
    for i in range(4):
        decoder[i].encoder_attn.register_forward_pre_hook(
            lambda _, __, kwargs, i=i: fed.update({i: kwargs["key"]}), with_kwargs=True
        )
    with torch.no_grad():
        memory = encoder(x)
        decoder(torch.randn(5, 2, 16), memory)
        for j in range(4):
            share = torch.softmax(encoder.wiring.weight[:, j], 0)
            torch.testing.assert_close(fed[j], sum(share[i] * layers[i] for i in range(4)))


def test_transparent_attention_serves_any_decoder() -> None:
    model = perturb(build("translation", "transparent_attention", "--decoder-residual", "dlcl_pre"))
    logits(model, "translation", batch("translation")).square().sum().backward()
    weight = stacks(model)[0].wiring.weight
    assert weight.grad is not None and (weight.grad.abs().sum(0) > 0).all()


@pytest.mark.parametrize("task", TASKS)
def test_sharing_along_depth(task: str) -> None:
    def modules(share: str, name: str) -> list[int]:
        model = build(task, "depthwise_lstm", "--residual-args", f"share={share}", layers=3)
        found = [m for stack in stacks(model) for m in dict(stack.named_modules(remove_duplicate=False)).items()]
        return [len({id(m) for key, m in found if key.endswith(f"unit.{name}")}), len(stacks(model))]

    for share, gates, hidden in (("gates", 1, 3), ("all", 1, 1), ("none", 3, 3)):
        for name, expected in (("gates", gates), ("hidden", hidden)):
            found, n_stacks = modules(share, name)
            assert found == expected * n_stacks, (share, name)


def test_hidden_layers_of_mudd_are_as_wide_as_published() -> None:
    for options, last in (("expand_last=false", 5), ("expand_last=true", 20)):
        for stack in stacks(build("translation", "mudd", "--residual-args", options, layers=4)):
            assert [tuple(w2.shape) for w2 in stack.wiring.w2] == [(8, 8), (12, 12), (16, 16), (5, last)]
    options = "expand_last=true,round_hidden=true"
    for stack in stacks(build("translation", "mudd", "--residual-args", options, layers=16)):
        assert [w2.shape[1] for w2 in stack.wiring.w2] == [64] * 14 + [128, 128]  # of 16 outputs, 64 becomes 128


def test_where_the_mixes_of_mudd_start() -> None:
    """W1 at N(0, 1 / C), here with 16 channels and 1,200 numbers in all."""
    layers = [stack.wiring for stack in stacks(build("translation", "mudd", layers=4))]
    w1 = torch.cat([weight.flatten() for wiring in layers for weight in wiring.w1])
    assert w1.numel() >= 1000 and abs(w1.std().item() - 0.25) < 0.02
    assert not any(weight.any() for wiring in layers for weight in wiring.w2)


def delta_at_start(name: str, args: str = "") -> list[Tensor]:
    """With the values of Pre-LN, and queries of 0."""
    outputs = []
    for one in wired(name, args, layers=4, eps=1e-14, like="pre_ln"):
        for connection, _ in one.sublayers():
            if getattr(connection, "over_depth", None) is not None:
                nn.init.zeros_(connection.over_depth.query)
        outputs.append(one.output())
    return outputs


def test_delta_attention_residuals_start_as_pre_ln_unless_in_blocks() -> None:
    for out, expected in zip(delta_at_start("delta_attnres"), delta_at_start("pre_ln"), strict=True):
        assert_close(out, expected)
    for out, expected in zip(delta_at_start("delta_attnres", "block=1"), delta_at_start("pre_ln"), strict=True):
        assert (out - expected).abs().max() > 0.1


def build_hybrid(form: str, args: str = "", task: str = "translation") -> nn.Module:
    given = ",".join(filter(None, (f"first_layer={form}", args)))
    return perturb(build(task, "hybrid_norm", "--residual-args", given, layers=3))


@pytest.mark.parametrize("kind", ("layer", "rms", "dyt"))
def test_heads_of_hybrid_norm_share_one_gain_and_there_is_no_bias(kind: str) -> None:
    stack = stacks(build_hybrid("plain", f"norm={kind}", "language_modeling"))[0]
    names = {"weight", "alpha"} if kind == "dyt" else {"weight"}
    for norm in (getattr(stack[1].self_attn_connection, f"{part}_norm") for part in "qkv"):
        assert {name for name, _ in norm.named_parameters()} == names
        assert norm.weight.shape == (stack.shape.dim // stack.shape.heads,)


def test_norms_before_attention_are_hybrid_norm_stars() -> None:
    def norms(form: str) -> set[str]:
        state = build_hybrid(form).state_dict()
        return {name.removesuffix(".weight") for name in state if name.endswith("attn_layer_norm.weight")}

    assert norms("plain") == set()
    assert norms("star") == {
        "encoder.layers.0.self_attn_layer_norm",
        "decoder.layers.0.self_attn_layer_norm",
        "decoder.layers.0.encoder_attn_layer_norm",
    }


@pytest.mark.parametrize(("name", "evaluations"), [("ode_rk2", 2), ("ode_rk4", 4)])
def test_ode_evaluates_the_encoders_layers_several_times(name: str, evaluations: int) -> None:
    model = build("translation", name, layers=3)
    calls = {"encoder": 0, "decoder": 0}
    for stack in stacks(model):
        for i in range(3):

            def count(module: nn.Module, inputs: Any, output: Any, side: str = stack.shape.stack) -> None:
                calls[side] += 1

            stack[i].ffn_connection.register_forward_hook(count)
    logits(model, "translation", batch("translation"))
    assert calls == {"encoder": evaluations * 3, "decoder": 3}


def test_ode_draws_dropout_anew_in_each_evaluation() -> None:
    encoder, _ = stacks(build("translation", "ode_rk2", "--dropout", "0.5", layers=1).train())
    drawn: list[Tensor] = []
    encoder[0].ffn_connection.register_forward_hook(lambda m, i, o: drawn.append(o[0]["x"] - i[0]["x"]))
    encoder[0]({"x": torch.randn(9, 2, 16)}, Context())
    first, second = (x.eq(0) for x in drawn)
    assert 0.2 < first.float().mean() < 0.8 and not torch.equal(first, second)


def test_ode_refuses_a_language_model() -> None:
    with pytest.raises(UserError, match="a language model has none"):
        build("language_modeling", "pre_ln", "--residual", "ode_rk2")


def test_ode_s_gate_is_one_for_all_layers_and_of_the_encoder_alone() -> None:
    for mode, names in (("standard", set()), ("gated", {"gate.weight", "gate.bias"}), ("alpha", {"alpha"})):
        encoder, decoder = stacks(build("translation", "ode_rk2", "--residual-args", f"mode={mode}"))
        own = {"norm.weight", "norm.bias"}
        assert {name for name, _ in encoder.wiring.named_parameters()} == own | names
        assert {name for name, _ in decoder.wiring.named_parameters()} == own


# what keeps each in the range of half precision, where it needs something; b2t_no_ln has the beta of 512 channels,
# since by its rule layers of 16 channels multiply their input by 1.07 or more; each sub-layer of two lanes multiplies
# the stream by sqrt(1.1), which 300 sub-layers take beyond 65504; one of deep_delta moves it by two, of four in length
DEEP = {
    "resi_dual": "scale=0.05",
    "b2t": "init_scale=depth",
    "b2t_no_ln": f"init_scale=depth,beta={512**-0.2}",
    "deep_delta": "start=0.01",
    "realformer": "mean=true",
    "two_lane": "start=pre_ln",
}


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_100_layers(variant: str) -> None:
    """In encoder and decoder, built for depth: a step is finite in half precision, whose range is the smallest."""
    model = build("translation", variant, "--residual-args", DEEP.get(variant, ""), layers=100).half().train()
    out = logits(model, "translation", batch("translation"))
    out.float().log_softmax(-1).square().mean().backward()
    assert out.isfinite().all()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert not [name for name, gradient in gradients.items() if gradient is None or not gradient.isfinite().all()]
