"""post_ln and pre_ln are fairseq's own models: same weights from the same seed, same numbers, under every flag."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import TASKS, batch, build, build_stock, gradients_by_fairseq_name, logits, perturb
from torch import Tensor, nn

MT, LM, ASR = TASKS
CASES = [(task, variant, ()) for task in TASKS for variant in ("post_ln", "pre_ln")] + [
    (MT, "post_ln", ("--share-all-embeddings",)),
    (MT, "post_ln", ("--encoder-learned-pos", "--decoder-learned-pos")),
    (MT, "pre_ln", ("--layernorm-embedding", "--no-scale-embedding")),
    (MT, "pre_ln", ("--no-decoder-final-norm",)),
    (MT, "post_ln", ("--no-token-positional-embeddings", "--activation-fn", "gelu")),
    (MT, "pre_ln", ("--no-cross-attention",)),
    (MT, "post_ln", ("--encoder-embed-dim", "12", "--encoder-ffn-embed-dim", "20", "--encoder-layers", "3")),
    (LM, "pre_ln", ("--no-decoder-final-norm",)),
    (LM, "pre_ln", ("--decoder-learned-pos", "--layernorm-embedding", "--activation-fn", "gelu")),
    (LM, "post_ln", ("--character-embeddings", "--character-filters", "[(1, 4), (2, 4)]")),
    (ASR, "pre_ln", ("--conv-kernel-sizes", "3,3", "--layernorm-embedding")),
    (ASR, "post_ln", ("--share-decoder-input-output-embed", "--no-scale-embedding")),
]


def pair(task: str, variant: str, flags: tuple[str, ...]) -> tuple[nn.Module, nn.Module]:
    return build(task, variant, *flags), build_stock(task, *flags, normalize_before=variant == "pre_ln")


@pytest.mark.parametrize(("task", "variant", "flags"), CASES, ids=lambda v: "".join(v) if isinstance(v, tuple) else v)
def test_equal_to_stock(task: str, variant: str, flags: tuple[str, ...]) -> None:
    ours, stock = pair(task, variant, flags)
    state, stock_state = ours.state_dict(), stock.state_dict()
    assert set(state) == set(stock_state)
    for name in state:
        # fairseq fills this placeholder with whatever the memory held
        assert name.endswith("_float_tensor") or torch.equal(state[name], stock_state[name]), name
    assert sum(isinstance(m, nn.LayerNorm) for m in ours.modules()) == sum(
        isinstance(m, nn.LayerNorm) for m in stock.modules()
    )

    perturb(stock)
    ours.load_state_dict(stock.state_dict(), strict=True)
    inputs = batch(task)
    torch.testing.assert_close(logits(ours, task, inputs), logits(stock, task, inputs), rtol=0, atol=0)
    logits(ours.train(), task, inputs).square().sum().backward()
    logits(stock.train(), task, inputs).square().sum().backward()
    found, expected = gradients_by_fairseq_name(ours), gradients_by_fairseq_name(stock)
    # an optimizer's state is stored in the order of the parameters
    assert list(found) == list(expected)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    stock.load_state_dict(state, strict=True)


@pytest.mark.parametrize("variant", ("post_ln", "pre_ln"))
def test_adaptive_language_model(variant: str) -> None:
    flags = (
        *("--adaptive-input", "--adaptive-input-cutoff", "10,20", "--adaptive-softmax-cutoff", "10,20"),
        *("--tie-adaptive-weights", "--tie-adaptive-proj", "--no-decoder-final-norm"),
    )
    ours, stock = pair(LM, variant, flags)
    for name, value in stock.state_dict().items():
        assert name.endswith("_float_tensor") or torch.equal(ours.state_dict()[name], value), name
    perturb(stock)
    ours.load_state_dict(stock.state_dict(), strict=True)
    inputs = batch(LM)
    target = inputs["src_tokens"].roll(-1, 1)
    results = []
    for model in (ours, stock):
        features = model(**inputs)[0]
        results.append(model.decoder.adaptive_softmax.get_log_prob(features, target))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@pytest.mark.parametrize("task", (MT, ASR))
def test_checkpoint_with_the_dead_copies_of_0_12_2_loads(task: str) -> None:
    ours, other = perturb(build(task, "post_ln")), build(task, "post_ln", seed=2)
    state = ours.state_dict()
    prefix = next(name for name in state if "layers.0.fc1.weight" in name).removesuffix("fc1.weight")
    for part in ("in_proj", "out_proj", "fc1", "fc2"):
        state |= {f"{prefix}{part}_weight": torch.zeros(3), f"{prefix}{part}_bias": torch.zeros(3)}
    other.load_state_dict(state, strict=True)
    torch.testing.assert_close(logits(other, task, batch(task)), logits(ours, task, batch(task)), rtol=0, atol=0)
    assert not [name for name in other.state_dict() if name.endswith(("fc1_weight", "in_proj_bias"))]


def test_norm_names_from_before_fairseq_0_6_load() -> None:
    ours, other = perturb(build(MT, "post_ln")), build(MT, "post_ln", seed=2)
    state = {
        name.replace("self_attn_layer_norm", "layer_norms.0").replace("final_layer_norm", "layer_norms.1")
        if name.startswith("encoder.")
        else name: value
        for name, value in ours.state_dict().items()
    }
    assert "encoder.layers.1.layer_norms.1.bias" in state
    other.load_state_dict(state, strict=True)
    torch.testing.assert_close(logits(other, MT, batch(MT)), logits(ours, MT, batch(MT)), rtol=0, atol=0)


def test_misfits_are_reported_by_fairseqs_names() -> None:
    state = build(MT, "pre_ln").state_dict()
    del state["encoder.layer_norm.bias"], state["decoder.layers.1.encoder_attn_layer_norm.weight"]
    state["decoder.layers.0.gain"] = torch.ones(1)
    missing, unexpected = build(MT, "pre_ln").load_state_dict(state, strict=False)
    assert missing == ["encoder.layer_norm.bias", "decoder.layers.1.encoder_attn_layer_norm.weight"]
    assert unexpected == ["decoder.layers.0.gain"]


def test_hooks_on_the_first_matrix_of_the_ffn_see_the_same() -> None:
    """Whose output is otherwise changed in place."""
    seen: list[Any] = []
    for model in (build_stock("translation", normalize_before=False), build("translation", "post_ln")):
        kept: list[Tensor] = []
        gradients: list[Tensor] = []
        fc1: Any = model.get_submodule("encoder.layers.0.fc1")
        fc1.register_forward_hook(lambda module, args, output, kept=kept: kept.append(output))
        fc1.register_full_backward_hook(lambda module, given, of_output, out=gradients: out.append(of_output[0]))
        logits(model, "translation", batch("translation")).square().sum().backward()
        assert kept[0].min() < 0
        seen.append((kept[0].flatten(0, -2), gradients[0].flatten(0, -2)))
    torch.testing.assert_close(*seen, rtol=1e-5, atol=1e-5)
