"""What rewire refuses, each in a sentence, and what it sees though the outputs that it compares would hide it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from fairseq_residuals import Blocks, SubLayerNames, UserError, rewire
from fairseq_residuals.wirings.rewire.outputs import example_for
from fairseq_residuals.wirings.rewire.traced import trace_blocks
from tests.models_of_transformers import BARE, DECODER, IMAGES, PAIR, built, causal, tiny
from tests.test_rewire import OTHERS, Attention, Block, SideBySide, described, framework, outputs


def test_branches_in_another_order_are_refused() -> None:
    model: Any = framework()
    model.blocks = nn.ModuleList(SideBySide(block, nn.LayerNorm(16)) for block in model.blocks)
    blocks = Blocks("blocks", (SubLayerNames("self", "", "fc2", "norm", beside="attn"),), "norm")
    with pytest.raises(UserError, match="attn ran before fc2: exchange the two"):
        rewire(model, "pre_ln", batch=X, blocks=blocks)


def test_layers_that_compute_something_else_are_refused() -> None:
    """Doge has the names of Llama, and learns what its residual connections are multiplied by, from 1 on."""
    model = causal("Doge", num_key_value_heads=2)().eval()
    (llama,) = trace_blocks(tiny("llama"), example_for(tiny("llama")))
    for blocks, seen in (
        (None, r"are seen to compute x \+ F\(norm\(x\)\), or norm"),
        (llama, "do not compute x .*, nor"),
    ):
        for start in ("keep", "paper"):
            with pytest.raises(UserError, match=seen):
                rewire(model, "hyper_connections", start=start, blocks=blocks)  # type: ignore[arg-type]


def own(**change: Any) -> dict[str, Any]:
    """Arguments for a framework whose attention is described with a change."""
    attention, ffn = described().sublayers
    return {"batch": X, "blocks": replace(described(), sublayers=(replace(attention, **change), ffn))}


llama, X = partial(tiny, "llama"), torch.randn(2, 5, 16)
REVERSED = replace(described(), sublayers=described().sublayers[::-1])
IBERT = Blocks("encoder.layer", (SubLayerNames("self", "attention.self", norm="attention.output.LayerNorm"),))
MAMBA, _ = OTHERS["one sub-layer in a layer"]
SERIES = {"batch": {"past_values": X}}
SCALED = {"variant": "gated_residual", "options": {"norm_type": "scalenorm"}}


def framework_that_pools() -> Any:
    (model := framework()).blocks[0].register_forward_hook(lambda module, args, x: x[:, ::2])
    return model


def time_series(norm: str) -> Any:
    """PatchTST, whose layers see each of the channels of X as a sentence of its own."""
    sizes = {"context_length": 5, "patch_length": 4, "num_input_channels": 16, "d_model": 16, "ffn_dim": 32}
    return built("PatchTSTModel", "PatchTSTConfig", **sizes, num_attention_heads=2, norm_type=norm)()


HIERA = {"embed_dim": 16, "image_size": [32, 32], "depths": [2, 3], "num_heads": [1, 2], "num_query_pool": 1}


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (llama, {"start": "same"}, "start='same' is unknown; valid are keep, paper"),
        (
            lambda: nn.Linear(2, 2),
            {"batch": torch.ones(1, 2)},
            r"no layers of Linear are seen to compute x \+ F\(norm\(x\)\), or norm\(x \+ F\(x\)\); describe",
        ),
        (built("IBertModel", "IBertConfig", **DECODER), {"blocks": IBERT}, "a norm of IBertLayer returns more"),
        (llama, {"options": {"norm_eps": 0.1}}, "option norm_eps has no effect"),
        (llama, {"variant": "dlcl_pre", "options": {"norm": True}}, "dlcl_pre cannot start as the model that was"),
        (llama, {"variant": "pre_ln:0-1,mhc:2", "options": {"pre_ln.final_norm": True}}, "has no norm"),
        # the second of its feature maps
        (
            built("Dinov2Backbone", "Dinov2Config", **IMAGES, out_indices=[1, 3]),
            {"variant": "layernorm_scaling"},
            "outputs differ by",
        ),
        (framework_that_pools, {"blocks": described(), "batch": X}, "of several shapes, \\(2, 5"),
        (llama, {"options": {"out_scale": 2}}, "option out_scale draws the weights of sub-layers"),
        (
            lambda: tiny("gpt_neox"),
            {"start": "paper"},
            'GPTNeoXLayer has a norm for each of two branches, where a wiring has one: only start="keep" leaves',
        ),
        (
            lambda: nn.Sequential(framework(), framework()),
            {"batch": X},
            "Sequential has layers in several places, 0.blocks, 1.blocks",
        ),
        # the first layer of the others computes something else
        (built("HieraModel", "HieraConfig", **HIERA), {}, "several places, encoder.stages.0.layers, encoder.stages.1"),
        (lambda: rewire(tiny("llama"), "pre_ln"), {}, "rewired already"),
        (lambda: tiny("llama").to("meta"), {}, "the model has no weights yet, or they are offloaded"),
        (llama, {"options": {"init": "xavier"}}, "option init draws the weights of sub-layers"),
        (framework, {"blocks": described()}, "give batch="),
        # whose input is called words; and that wants pictures too
        (built("Idefics3VisionTransformer", "Idefics3VisionConfig", **BARE), {}, "give batch="),
        (built("CLIPModel", "CLIPConfig", text_config=DECODER, vision_config=IMAGES), {}, "give batch="),
        (built("SamVisionModel", "SamVisionConfig", **IMAGES, window_size=2), {}, r"Attention returned \(.* stream is"),
        (partial(time_series, "layernorm"), SERIES, r"returned \(32, 2, 16\) where the stream is"),
        (partial(time_series, "batchnorm"), SERIES, "BatchNorm normalizes over sentences"),
        (framework, own(norm="", function="norm"), "function='norm' is unknown; valid are rms_norm, layer_norm"),
        (lambda: own(kind="attn"), {}, "kind='attn' of a sub-layer is unknown; valid are self, cross, ffn"),
        (framework, own(enter="attention"), "a layer of blocks has no attention"),
        (framework, own(dropout="drp"), "a layer of blocks has no drp"),
        (framework, own(scale="gain"), "a layer of blocks has no gain"),
        (framework, own(inner="attn.out"), "no layer of blocks has attn.out"),
        (
            framework,
            own(query="", value="") | {"variant": "hybrid_norm", "start": "paper"},
            "hybrid_norm has to see the queries after their projection and the values",
        ),
        (framework, {"batch": X, "blocks": REVERSED}, "describe sub-layers in the order in which they run"),
        (framework, {"batch": X, "blocks": replace(described(), layers="block")}, "Framework has no block"),
        (framework, {"batch": X, "blocks": replace(described(), layers="norm")}, "norm of Framework holds no layers"),
        (framework, {"batch": X, "blocks": replace(described(), norm="nrm")}, "Framework has no nrm"),
        (
            built("PegasusXForConditionalGeneration", "PegasusXConfig", **PAIR, num_global_tokens=4),
            {},
            "has an encoder and a decoder, and of these model.decoder.layers alone",
        ),
        (partial(tiny, "bart", encoder_layerdrop=0.1), {}, "BartEncoder skips layers in training"),
        (partial(tiny, "wav2vec2", layerdrop=0.1), {"batch": torch.randn(2, 400)}, "Wav2Vec2Encoder skips layers in"),
        # sums of bfloat16 would lose what Mamba keeps
        (
            lambda: MAMBA().to(torch.bfloat16),
            {},
            "keep the stream in single precision, which a wiring has in torch.bfloat16",
        ),
        # its experts are in one module, and the norm of their activations would never run
        (
            causal("Mixtral", num_key_value_heads=2, num_local_experts=2),
            {"variant": "normformer", "start": "paper"},
            "normformer has to see the activations of the FFN",
        ),
        (llama, SCALED, "ScaleNorm cannot take what the model's LlamaRMSNorm has learned"),
        (lambda: tiny("gpt2"), SCALED, "ScaleNorm cannot take what the model's LayerNorm has learned"),
        (
            lambda: tiny("vit"),
            {"variant": "mudd", "options": {"norm_type": "rms"}},
            "RMSNorm cannot take what the model's LayerNorm has learned",
        ),
    ],
)
def test_refused(make: Callable[[], Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rewire(make(), **{"variant": "hyper_connections"} | arguments)


def test_chunks_of_positions_are_refused() -> None:
    model = rewire(tiny("bert"), "post_ln")
    model.bert.encoder.layer[0].chunk_size_feed_forward = 3
    with pytest.raises(UserError, match="a wiring needs all positions at once"):
        outputs(model, "bert")


def steer(model: Any, layer: int = 0) -> None:
    model.model.layers[layer].register_forward_hook(lambda module, args, output: output + 1)


def exchange_a_norm(model: Any) -> None:
    model.model.layers[1].input_layernorm = copy.deepcopy(model.model.layers[1].input_layernorm)


def patch_the_last_norm(model: Any) -> None:
    model.model.norm.forward = partial(type(model.model.norm).forward, model.model.norm)


def watch_gradients(model: Any) -> None:
    model.model.layers[1].mlp.register_full_backward_hook(lambda module, of_input, of_output: None)
    outputs(model, "llama")
    model(**example_for(model))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (watch_gradients, "a full backward hook of LlamaMLP would see no gradient"),
        (steer, "between layers 0 and 1 of model.layers the stream was changed"),
        (partial(steer, layer=-1), "above model.layers the stream was changed"),
        (lambda model: model.model.layers.pop(2), "model.layers are not the layers that were wired"),
        (lambda model: setattr(model.config, "num_hidden_layers", 2), "the last of model.layers did not run"),
        (lambda model: model.model.layers[1](torch.ones(1, 2, 32)), "layer 1 of model.layers runs without the"),
        (exchange_a_norm, "input_layernorm of a layer, which the wiring calls, was replaced or patched"),
        (patch_the_last_norm, "model.norm, which the wiring calls, was replaced or patched"),
        (lambda model: setattr(model.model, "wiring", copy.deepcopy(model.model.wiring)), "a copy stands in place of"),
        # as Trainer does where a process sees several GPUs
        (lambda model: model.model.wiring._replicate_for_data_parallel(), "start a process for each GPU"),
    ],
)
def test_changes_after_rewire_that_would_have_no_effect(change: Callable[[Any], Any], message: str) -> None:
    model = rewire(tiny("llama"), "hyper_connections")

    def run() -> None:
        change(model)
        outputs(model, "llama")

    with pytest.raises(UserError, match=message):
        run()


def test_hooks_on_sub_layers_act_before_and_after() -> None:
    def silence(model: Any) -> Tensor:
        model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: 0 * output)
        return outputs(model, "llama")

    models = [tiny("llama") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    torch.testing.assert_close(silence(rewire(models[0], "pre_ln")), silence(models[1]))


def test_a_norm_s_own_kernel_is_called_and_comes_back() -> None:
    model = tiny("llama")
    norm = model.model.norm
    norm.forward = kernel = Mock(side_effect=partial(type(norm).forward, norm))
    with pytest.raises(UserError, match="cannot start as the model that was"):
        rewire(model, "b2t")
    assert norm.forward is kernel
    rewire(model, "pre_ln")
    kernel.reset_mock()
    outputs(model, "llama")
    kernel.assert_called_once()


def test_a_checkpoint_from_outside_that_knows_no_stream_is_refused() -> None:
    """Gradients of what the wiring keeps beside the stream were lost."""
    model, x = framework(), torch.randn(2, 5, 16, requires_grad=True)
    rewire(model, "attention_residuals", batch=x, blocks=described())
    run = partial(checkpoint_sequential, model.blocks, 2, x)
    found, expected = run(use_reentrant=False), model.blocks[1](model.blocks[0](x))
    grads = [
        torch.autograd.grad(out.sin().sum(), [*model.blocks.parameters()], allow_unused=True)
        for out in (found, expected)
    ]
    torch.testing.assert_close(*grads)
    with pytest.raises(UserError, match="checkpoint the whole model, or"):
        run(use_reentrant=True)


@pytest.mark.parametrize(
    "run", [partial(checkpoint, use_reentrant=r) for r in (False, True)] + [torch.no_grad()(lambda f, x: f(x))]
)
@pytest.mark.parametrize("variant", ["hyper_connections", "mudd"])
def test_parts_of_a_layer_without_gradients_are_refused(variant: str, run: Any, monkeypatch: Any) -> None:
    """Those of the stream were lost, or a recomputation in the backward pass ended in a KeyError."""
    if variant == "mudd":  # which acts inside of attention
        attend = Attention.forward
        monkeypatch.setattr(Attention, "forward", lambda self, x: run(partial(attend, self), x))
        monkeypatch.setattr(Block, "gradient_checkpointing", True, raising=False)  # a switch of its own
        model = framework()
    else:
        model = computing(lambda block, x: x + run(block.attn, block.norm1(x)))
    rewire(model, variant, batch=X, blocks=described())
    with pytest.raises(UserError, match="runs by itself, or without gradients: checkpoint the whole"):
        model(X.clone().requires_grad_()).sin().sum().backward()


@pytest.mark.parametrize("wiring", ["sub_ln", "hybrid_norm", "mudd"])
def test_linear_maps_have_to_be_called(wiring: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's attention reads the weights of its own alone, and hooks would wait in vain."""

    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = (linear.forward(x) for linear in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj.forward(nn.functional.scaled_dot_product_attention(q, k, v))  # type: ignore[no-any-return]

    monkeypatch.setattr(Attention, "forward", forward)
    model, x = framework().eval(), X
    with pytest.raises(UserError, match="of attention, which Block does not show"):
        rewire(model, wiring, start="paper", batch=x, blocks=described())
    rewire(model, "hyper_connections", batch=x, blocks=described())


def computing(first: Callable[[Any, Tensor], Tensor]) -> Any:
    """A framework whose layers have ``first`` in the place of attention and its sum."""

    class Other(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = first(self, x)
            return x + self.fc2(self.fc1(self.norm2(x)).relu())  # type: ignore[no-any-return]

    model = framework()
    for block in model.blocks:
        block.__class__ = Other
    return model


class StochasticDepth(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(len(x), 1, 1).round() if self.training else x


@pytest.mark.parametrize(
    "drop", [nn.Dropout(0.1), StochasticDepth(), partial(nn.functional.dropout, p=0.1, training=False)]
)
def test_a_dropout_that_is_left_out_is_seen(drop: Any) -> None:
    """Though the outputs that are compared are those of evaluation, where dropout does nothing."""
    model, x = computing(lambda block, x: x + drop(block.attn(block.norm1(x)))), X
    for block in model.blocks:
        block.drop = drop if isinstance(drop, nn.Module) else 0.1
    with pytest.raises(UserError, match="do not compute x"):
        rewire(model, "pre_ln", batch=x, blocks=described())
    attention, ffn = described().sublayers
    rewire(model, "pre_ln", batch=x, blocks=replace(described(), sublayers=(replace(attention, dropout="drop"), ffn)))
    assert any(not torch.equal(model.train()(x), model(x)) for _ in range(20))


@pytest.mark.parametrize("draws", [lambda x: x.new_empty(len(x), 1, 1).bernoulli_(0.9) / 0.9, torch.rand_like])
def test_a_function_of_stochastic_depth_that_is_left_out_is_seen(draws: Callable[[Tensor], Tensor]) -> None:
    """Which the layer's own code calls, as timm's and torchvision's; no module shows it."""

    def drops(block: Any, x: Tensor) -> Tensor:
        y = block.attn(block.norm1(x))
        return x + (y * draws(y) if block.training else y)  # type: ignore[no-any-return]

    model = computing(drops)
    modes = [module.training for module in model.modules()]
    with pytest.raises(UserError, match="do not compute x"):
        rewire(model, "pre_ln", batch=X, blocks=described())
    assert [module.training for module in model.modules()] == modes


def test_maps_that_start_at_zero_hide_nothing() -> None:
    """A sub-layer that starts by adding nothing would fit any description; the parameters stay as they are."""
    model = framework().eval()
    for block in model.blocks:
        for linear in (block.attn.out_proj, block.fc2):  # type: ignore[union-attr]
            nn.init.zeros_(linear.weight)  # type: ignore[arg-type,union-attr]
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    wrong = replace(described(), sublayers=tuple(replace(sub, norm="") for sub in described().sublayers))
    with pytest.raises(UserError, match="do not compute"):
        rewire(model, "hyper_connections", batch=X, blocks=wrong)
    rewire(model, "hyper_connections", batch=X, blocks=described())
    assert all(torch.equal(dict(model.named_parameters())[name], value) for name, value in before.items())


def test_weights_that_start_at_one_and_zero_hide_nothing() -> None:
    """NeoMME mixes the stream so before it normalises; the wiring would normalise another one."""
    model = computing(lambda block, x: x + block.attn(block.norm1(block.weights[0] * x + block.weights[1])))
    for block in model.blocks:
        block.weights = nn.Parameter(torch.stack([torch.ones(16), torch.zeros(16)]))
    with pytest.raises(UserError, match="do not compute x"):
        rewire(model, "pre_ln", batch=X, blocks=described())
    assert all(torch.equal(block.weights[:, 0], torch.tensor([1.0, 0.0])) for block in model.blocks)


def test_one_norm_of_several_places_is_refused() -> None:
    model = framework()
    for block in model.blocks:
        block.norm1 = model.blocks[0].norm1
    with pytest.raises(UserError, match="norm1 are one norm"):
        rewire(model, "pre_ln", batch=X, blocks=described())


def test_two_norms_of_a_layer_are_refused() -> None:
    """Before the last norm is left out, which the wiring has not."""
    model = tiny("gpt_neox")
    before = outputs(model, "gpt_neox")
    with pytest.raises(UserError, match="GPTNeoXLayer has a norm for each of two branches"):
        rewire(model, "post_ln", start="paper")
    assert torch.equal(outputs(model, "gpt_neox"), before)


def test_what_ends_the_comparison_leaves_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is none below a norm that is one, and Ctrl-C while weights are drawn."""
    model, x = framework().eval(), X
    before, weights = model(x), copy.deepcopy(model.state_dict())
    attention, ffn = described().sublayers
    wrong = replace(ffn, norm="", function="norm")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="function='norm' is unknown"):
        rewire(model, "mhc", batch=x, blocks=replace(described(), sublayers=(attention, wrong)))
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)
    drawn, draw = [], torch.randn

    def interrupted(*args: Any, **kwargs: Any) -> Tensor:
        if drawn:
            raise KeyboardInterrupt
        drawn.append(args)
        return draw(*args, **kwargs)

    nn.init.zeros_(model.blocks[0].fc2.weight)  # type: ignore[union-attr,arg-type]
    nn.init.zeros_(model.blocks[1].fc2.weight)  # type: ignore[union-attr,arg-type]
    weights |= {f"blocks.{i}.fc2.weight": torch.zeros(16, 32) for i in range(2)}
    monkeypatch.setattr(torch, "randn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rewire(model, "mhc", batch=x, blocks=described())
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)
