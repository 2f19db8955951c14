"""What a framework does with its models works with rewired ones."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from fairseq_residuals import Blocks, Connection, UserError, load, parameter_groups, rewire
from tests.models_of_transformers import DECODER, IMAGES, example, perturb, tiny
from tests.rotation import rotated
from tests.test_own_wiring import Halved
from tests.test_rewire import NanoBlock

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

CASES = [
    ("llama", "hyper_connections", {}),
    ("gemma3", "attention_residuals", {}),
    ("qwen3", "pre_ln", {"value_residual": "learnable", "gpas": "layer"}),
    ("llama", "mudd", {}),
    ("t5", "hyper_connections", {}),
    ("bart", "post_ln", {}),
    ("mistral", "mhc", {}),
    ("gpt2", "attention_residuals", {}),
    ("olmo2", "identity_hc", {}),
    ("gptj", "mudd", {}),
    ("gpt_neox", "hyper_connections", {}),
    ("vit", "gated_residual", {}),
    ("bert", "post_ln", {}),
    ("marian", "post_ln", {"gpas": "layer"}),
]
GENERATING = [case for case in CASES if case[0] not in ("vit", "bert")]
REWIRED = pytest.mark.parametrize(("name", "variant", "options"), CASES)


def rewired(name: str, variant: str, options: dict[str, Any]) -> Any:
    """A model whose wiring has learned something."""
    model = rewire(tiny(name), variant, options)
    perturb(model, "wiring.")
    return model


def gradients(model: Any, name: str) -> dict[str, Tensor]:
    model.train()
    model(**example(name)).loss.backward()
    return {key: p.grad for key, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "variant", "options"), GENERATING)
def test_generation(name: str, variant: str, options: dict[str, Any]) -> None:
    model = rewired(name, variant, options)
    batch = {key: value for key, value in example(name).items() if key != "labels"}
    for beams in (1, 3):
        given = {**batch, "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "num_beams": beams}
        cached, plain = (model.generate(**given, use_cache=use_cache) for use_cache in (True, False))
        assert torch.equal(cached, plain)


@pytest.mark.parametrize(
    ("name", "variant", "options", "reentrant"),
    # the stream of ReZero has a parameter
    [*((*c, r) for c, r in rotated(CASES, (False, True))), ("llama", "re_zero", {}, True)],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradient_checkpointing(name: str, variant: str, options: dict[str, Any], reentrant: bool) -> None:
    model = rewired(name, variant, options)
    other = copy.deepcopy(model)
    other.gradient_checkpointing_enable({"use_reentrant": reentrant})
    expected, found = gradients(model, name), gradients(other, name)
    assert found.keys() == expected.keys() == {key for key, p in model.named_parameters() if p.requires_grad}
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-6)
    copy.deepcopy(other)  # which fails where a tensor of the pass is kept


def test_a_checkpointed_layer_keeps_no_keys_but_without_gradients() -> None:
    """It runs a second time in the backward pass, and would keep them twice."""
    model, batch = rewired(*CASES[0]).train(), example("llama")
    model.gradient_checkpointing_enable()
    cache = transformers.DynamicCache(config=model.config)
    for records in (True, False):
        with torch.set_grad_enabled(records):
            loss = model(**batch, cache=cache).loss
        if records:
            loss.backward()
        assert cache.get_seq_length() == (0 if records else batch["input_ids"].size(1))


def test_the_checkpoint_of_an_older_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = rewired(*CASES[0]).train()
    model.gradient_checkpointing_enable()
    layer = type(model.model.layers[0])
    monkeypatch.setattr(layer, "__call__", lambda *args, **kwargs: nn.Module.__call__(*args, **kwargs), raising=False)
    with pytest.raises(UserError, match=r"needs transformers 5\.23 or newer"):
        model(**example("llama"))
    model.eval()(**example("llama"))  # which checkpoints nothing


def test_what_an_error_in_a_pass_left_is_not_copied() -> None:
    """As where memory does not suffice, and a smaller batch follows."""
    model = rewired("llama", "mudd", {}).train()
    handle = model.model.layers[1].mlp.register_forward_pre_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**example("llama"))
    handle.remove()
    assert len(pickle.dumps(model)) < 1.1 * len(pickle.dumps(rewired("llama", "mudd", {})))
    other = copy.deepcopy(model)
    assert torch.equal(other(**example("llama")).logits, model(**example("llama")).logits)
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *args: 1 / 0)
    hidden = torch.randn(2, 9, 32)
    with pytest.raises(ZeroDivisionError):
        model(**example("llama"))
    with pytest.raises(UserError, match="or again after an error in it"):
        model.model.norm(hidden)
    assert model.model.norm(hidden).shape == hidden.shape


@pytest.mark.parametrize(("name", "variant", "options"), [*CASES, ("diffllama", "mhc", {}), ("exaone", "mhc", {})])
def test_copies_in_memory_and_in_a_folder(name: str, variant: str, options: dict[str, Any], tmp_path: Path) -> None:
    model, batch = rewired(name, variant, options), example(name)
    expected = model(**batch).logits
    other = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    model.save_pretrained(tmp_path / "wired")
    load(tmp_path, subfolder="wired").save_pretrained(tmp_path / "again")
    loaded = load(tmp_path / "again")
    assert type(loaded) is type(model)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    perturb(model)
    torch.testing.assert_close(other(**batch).logits, expected)
    torch.testing.assert_close(loaded(**batch).logits, expected, rtol=1e-5, atol=1e-5)


def test_a_part_is_saved_with_the_whole(tmp_path: Path) -> None:
    """The language model of one that sees; transformers would load it as if it was not rewired."""
    parts = {
        "vision_config": transformers.CLIPVisionConfig(**IMAGES),
        "text_config": transformers.LlamaConfig(**DECODER),
    }
    model = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(**parts, image_token_index=49)).eval()
    rewire(model.model.language_model, "hyper_connections")
    perturb(model)
    model.save_pretrained(tmp_path)
    words = torch.randint(3, 48, (2, 9))
    torch.testing.assert_close(load(tmp_path)(words).logits, model(words).logits)


@REWIRED
def test_one_graph(name: str, variant: str, options: dict[str, Any]) -> None:
    model, batch = rewired(name, variant, options), example(name)
    labels = batch.pop("labels")  # of which transformers says something in a log, in no graph
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = labels
    torch._dynamo.reset()
    # gradients, too, of one: that takes most of the time
    backend = "aot_eager" if (name, variant, options) == CASES[0] else "eager"
    no_cache = {} if name == "vit" else {"use_cache": False}
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(**batch, **no_cache).logits, model(**batch).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_rewired(in_place: bool) -> None:
    """Also one that ran before; the config says of what torch.compile has put around it nothing."""
    plain, batch = rewire(tiny("llama"), "b2t", start="paper"), example("llama") | {"use_cache": False}
    (described,) = plain.config.fairseq_residuals["blocks"]
    for blocks in (None, Blocks.of(described)):
        torch._dynamo.reset()
        model: Any = tiny("llama")
        model.compile(backend="eager")
        model = model if in_place else torch.compile(tiny("llama"), backend="eager")
        model(**batch)
        assert rewire(model, "b2t", start="paper", blocks=blocks) is model
        assert model.config.fairseq_residuals == plain.config.fairseq_residuals
        torch.testing.assert_close(model(**batch).logits, plain(**batch).logits)


@pytest.mark.parametrize("every", [1, 2])
@torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True)
def test_some_layers_compiled(every: int) -> None:
    """They run in another thread as well, such as one that generates while a streamer prints.

    PyTorch's limit of recompilations is for each layer: eight layers of a deep model would be all.
    """
    model, batch = rewired(*CASES[0]), example("llama")
    expected = model(**batch).logits
    torch._dynamo.reset()
    for layer in model.model.layers[::every]:
        layer.compile(backend="eager")
    torch.testing.assert_close(model(**batch).logits, expected)
    with ThreadPoolExecutor(1) as other:
        torch.testing.assert_close(other.submit(lambda: model(**batch).logits).result(), expected)


def test_hidden_states() -> None:
    model = rewired(*CASES[0])
    out = model(**example("llama"), output_hidden_states=True)
    assert [tuple(h.shape) for h in out.hidden_states] == [(2, 9, 32)] * 4
    torch.testing.assert_close(model.lm_head(out.hidden_states[-1]), out.logits)
    model.gradient_checkpointing_enable()
    gradients(model, "llama")
    for norm in (model.model.norm, model.model.layers[1].input_layernorm):  # which somebody else calls now
        expected = type(norm).forward(norm, out.hidden_states[1])
        torch.testing.assert_close(norm(out.hidden_states[1]), expected)
    model.model.layers[1].register_forward_hook(lambda module, args, output: model.model.norm(output))
    with pytest.raises(UserError, match=r"the last of .* did not run when model.norm was called"):
        model(**example("llama"))


@pytest.mark.parametrize(
    ("name", "variant", "options"), [CASES[0], CASES[5], ("gptj", "pre_ln", {}), ("llama", "pre_ln", CASES[2][2])]
)
def test_hooks_act_as_in_the_model_that_was(name: str, variant: str, options: dict[str, Any]) -> None:
    """On norms, and on what goes into attention and comes out; pruned weights are those of now."""

    def with_less(module: Any, args: tuple[Tensor, ...], given: dict[str, Any]) -> Any:
        return tuple(0.7 * x for x in args), given | {k: 0.7 * x for k, x in given.items() if k == "hidden_states"}

    plain, model, batch = tiny(name), rewire(tiny(name), variant, options), example(name)
    for key, module in (*plain.named_modules(), *model.named_modules()):
        if key.endswith(("norm", "ln_1", "ln_f")):
            module.register_forward_hook(lambda _, args, y: 1.1 * y)
        elif key.endswith("attn"):
            module.register_forward_pre_hook(with_less, with_kwargs=True)
            module.register_forward_hook(lambda _, args, output: (1.2 * output[0], *output[1:]))
        if key == "model.norm":
            prune.random_unstructured(module, "weight", 0).weight_orig.data *= 0.5
    torch.testing.assert_close(model(**batch).logits, plain(**batch).logits, rtol=1e-3, atol=1e-3)


ADAPTED = {
    **dict.fromkeys(("llama", "gemma3", "qwen3", "mistral", "olmo2"), ("k_proj", "v_proj", "down_proj")),
    **{"t5": ("k", "v", "wo"), "gpt2": ("c_attn", "c_proj"), "vit": ("v_proj", "fc1"), "bert": ("value", "dense")},
    **dict.fromkeys(("bart", "marian"), ("fc1", "fc2")),
    **{"gptj": ("k_proj", "v_proj", "fc_out"), "gpt_neox": ("query_key_value", "dense_4h_to_h")},
}
"""Linear maps by model: where wirings see into sub-layers, and where their hooks stand."""


@REWIRED
def test_adapters(name: str, variant: str, options: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model, batch, targets = rewired(name, variant, options), example(name), list(ADAPTED[name])
    before = model(**batch).logits
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False)).eval()
    logits = adapted(**batch).logits
    assert (logits - before).abs().max() > 1e-2
    adapted(**batch).loss.backward()
    learning = {key.split(".lora_")[0] for key, p in adapted.named_parameters() if p.grad is not None and p.grad.any()}
    assert {key.rpartition(".")[2] for key in learning} == set(targets)
    torch.testing.assert_close(adapted.merge_and_unload()(**batch).logits, logits, rtol=1e-4, atol=1e-4)


def test_a_module_in_the_place_of_another_is_used() -> None:
    class Twice(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.inner(x)  # type: ignore[no-any-return]

    model, batch = rewired("bart", "post_ln", {}), example("bart")
    plain = tiny("bart")
    for each in (model, plain):
        for layer in each.model.decoder.layers:
            layer.fc2 = Twice(layer.fc2)
    torch.testing.assert_close(model(**batch).logits, plain(**batch).logits, rtol=1e-4, atol=1e-4)


def test_the_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate, which transformers' Trainer needs, is not installed")
    model, batch = rewired(*CASES[0]), example("llama")
    rows = [{key: value[i] for key, value in batch.items()} for i in range(2)] * 4
    settings = {"max_steps": 4, "per_device_train_batch_size": 2, "use_cpu": True, "report_to": "none"}
    arguments = transformers.TrainingArguments(tmp_path, **settings, gradient_checkpointing=True)
    before = model(**batch).loss.item()
    transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    assert model.eval()(**batch).loss.item() < before


@pytest.mark.parametrize("variant", ["hyper_connections", "mudd"])
def test_threads_do_not_mix(variant: str) -> None:
    """A server calls one model from several threads."""
    model = rewired("llama", variant, {})
    batches = torch.randint(3, 50, (4, 2, 9))

    @torch.no_grad()
    def logits(words: Tensor) -> list[Tensor]:
        return [model(words).logits for _ in range(10)]

    with ThreadPoolExecutor(4) as pool:
        for words, found in zip(batches, pool.map(logits, batches), strict=True):
            torch.testing.assert_close(torch.stack(found), model(words).logits.expand(10, -1, -1, -1))


FIXED = {"dlcl_pre": {"weights": "fixed_one"}}


@pytest.mark.parametrize("variant", ["b2t", "re_zero", "parallel", "hybrid_norm", *FIXED])
def test_constants_and_norms_that_nothing_calls_are_frozen(variant: str, tmp_path: Path) -> None:
    """An optimizer's state would not fit else, and DistributedDataParallel waits for their gradients."""
    model, batch = rewire(tiny("llama"), variant, FIXED.get(variant), start="paper"), example("llama")
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    trained = {name for name, p in again.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == gradients(again, "llama").keys()
    torch.testing.assert_close(again(**batch).logits, model(**batch).logits)


def test_precision_and_mode() -> None:
    model = rewire(tiny("llama").bfloat16().train(), "hyper_connections")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert all(module.training for module in model.modules())
    model = rewired(*CASES[1])
    with torch.autocast("cpu", torch.bfloat16):
        model(**example("gemma3")).loss.backward()


@pytest.mark.parametrize(("name", "layers"), [("llama", "model.layers"), ("gpt2", "transformer.h")])
def test_an_optimizers_groups(name: str, layers: str) -> None:
    model = rewire(tiny(name), "pre_ln", {"depth_mup": True}, start="paper")
    in_layers = list(model.get_submodule(layers).parameters())
    groups = parameter_groups(model, lr=1.0, weight_decay=0.1, eps=1e-8, matrices=True)
    grouped = [p for group in groups for p in group["params"]]
    assert len(grouped) == len(set(grouped)) == sum(p.requires_grad for p in model.parameters())
    matrices = {p for group in groups if group["matrices"] for p in group["params"]}
    assert matrices == {p for p in in_layers if p.dim() == 2}
    scaled = {p for group in groups if group.get("eps") == pytest.approx(1e-8 / 1.5) for p in group["params"]}
    assert scaled == {p for p in in_layers if p not in matrices}


def test_mup_decays_no_norm_and_takes_a_table_for_an_embedding() -> None:
    model = rewire(tiny("t5"), "complete_p", {"mup": True, "base_width": 8}, start="paper")
    groups = parameter_groups(model, lr=1.0, weight_decay=0.1)
    decays = {p: group["weight_decay"] for group in groups for p in group["params"]}
    assert all((p.dim() == 1) == (decay == 0.0) for p, decay in decays.items())
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    assert len(tables) == 3 and tables == {p for p, decay in decays.items() if decay == 0.1}  # two of positions


def test_a_part_and_what_no_file_holds_are_loaded(tmp_path: Path) -> None:
    """mhc_lite's permutations stand in no file, and transformers would leave them empty."""
    model = tiny("llama")
    rewire(model.model, "mhc_lite", batch=example("llama")["input_ids"], start="paper")
    perturb(model)
    model.save_pretrained(tmp_path)
    again, told = load(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    torch.testing.assert_close(again(**example("llama")).logits, model(**example("llama")).logits)


@pytest.mark.parametrize("variant", ["hyper_connections", "attention_residuals"])
def test_an_output_that_nothing_normalises_is_what_it_was(variant: str, tmp_path: Path) -> None:
    """A norm that follows the mean over positions hides how many streams are added up; features are read below it."""
    model = transformers.BeitModel(transformers.BeitConfig(**IMAGES, use_mean_pooling=True)).eval()
    pixels = torch.randn(2, 3, 16, 16)
    before = model(pixels)[0]
    rewire(model, variant).save_pretrained(tmp_path)
    for wired in (model, load(tmp_path)):
        torch.testing.assert_close(wired(pixels)[0], before, rtol=1e-4, atol=1e-4)


def test_models_of_one_config(tmp_path: Path) -> None:
    config, batch = tiny("llama").config, example("llama")
    models = {
        name: rewire(transformers.LlamaForCausalLM(config).eval(), name, start="paper") for name in ("b2t", "deepnet")
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        torch.testing.assert_close(load(tmp_path / name)(**batch).logits, model(**batch).logits)


@pytest.mark.parametrize("variant", ["b2t", "hyper_connections"])
def test_models_that_have_the_config_of_a_rewired_one_alone_are_refused(variant: str, tmp_path: Path) -> None:
    """They were wired by load: one built from its config, and one that transformers loaded from its folder."""
    model = rewire(tiny("llama"), variant, start="paper")
    model.save_pretrained(tmp_path / "wired")
    read = type(model).from_pretrained(tmp_path / "wired")
    for name, plain in (("twin", type(model)(model.config)), ("read", read)):
        plain.save_pretrained(tmp_path / name)
        with pytest.raises(UserError, match="its weights are of one that was not"):
            load(tmp_path / name)
    assert load(tmp_path / "wired").state_dict().keys() == model.state_dict().keys()


def test_a_wiring_of_ones_own_is_loaded_by_its_class(tmp_path: Path) -> None:
    model = rewire(tiny("llama"), Halved, start="paper")
    perturb(model, "wiring.")
    model.save_pretrained(tmp_path)
    for wrong in ({}, {"wiring": Connection}):
        with pytest.raises(UserError, match=r"is wired by Halved: .* wiring=Halved"):
            load(tmp_path, **wrong)
    torch.testing.assert_close(
        load(tmp_path, wiring=Halved)(**example("llama")).logits, model(**example("llama")).logits
    )


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder of a model of transformers"):
        load(tmp_path)
    model = tiny("llama")
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="was not rewired"):
        load(tmp_path)
    wired = rewire(tiny("llama"), "mhc")
    wired.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"do not both have model.layers.2"):
        load(tmp_path, num_hidden_layers=2)
    wired.lm_head.weight = wired.model.embed_tokens.weight
    wired.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"do not both have lm_head.weight"):
        load(tmp_path)
    model.config.fairseq_residuals = wired.config.fairseq_residuals
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="its weights are of one that was not"):
        load(tmp_path)
    model.config.fairseq_residuals["blocks"][0].pop("others")
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="as another version did"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "returned"), [(torch.float32, None), (torch.float32, torch.bfloat16), (torch.bfloat16, None)]
)
def test_a_hook_that_changes_the_stream_is_refused_in_a_process_of_several(
    dtype: torch.dtype, returned: torch.dtype | None, tmp_path: Path
) -> None:
    """As torchrun and accelerate start one; there, what the hook returned had no effect."""
    model, batch = rewired(*CASES[0]).to(dtype), example("llama")
    distributed.init_process_group("gloo", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        for module in (*model.model.layers, model):  # casts what a layer returns, and no parameter
            fully_shard(
                module, mesh=init_device_mesh("cpu", (1,)), mp_policy=MixedPrecisionPolicy(output_dtype=returned)
            )
        model(**batch)
        model.model.layers[0].register_forward_hook(lambda module, args, output: output + torch.ones(output.size(-1)))
        with pytest.raises(UserError, match=r"between layers 0 and 1 of .* the stream was"):
            model(**batch)
        with pytest.raises(UserError, match="DistributedDataParallel shares no gradients of"):
            rewire(DistributedDataParallel(tiny("llama")), "mhc", batch=batch)
    finally:
        distributed.destroy_process_group()


def sharded(rank: int, folder: Path) -> None:
    """Compare gradients of parameters that two processes share with those of DDP."""
    distributed.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for name, variant in (("llama", "attention_residuals"), ("gpt_neox", "hyper_connections")):
        model = rewired(name, variant, {}).train()
        words = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(rank))
        parallel = DistributedDataParallel(copy.deepcopy(model))
        parallel(words, labels=words).loss.backward()
        compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="eager")
        norms = [module for name, module in model.base_model.named_children() if name.endswith("norm")]
        for module in (*model.base_model.layers, *norms, model):
            fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        out = model(words, labels=words)
        torch.testing.assert_close(compiled(words, labels=words).logits, out.logits)
        out.loss.backward()
        for found, expected in zip(model.parameters(), parallel.parameters(), strict=True):
            torch.testing.assert_close(found.grad.full_tensor(), expected.grad, rtol=1e-4, atol=1e-6)
    distributed.destroy_process_group()


def test_layers_are_sharded(tmp_path: Path) -> None:
    """The parameters of a layer are there when its gradients are computed, which pass the layers by."""
    torch.multiprocessing.start_processes(sharded, (tmp_path,), nprocs=2, start_method="fork")


class NanoGPT(nn.Module):
    """A language model with the names of nanoGPT."""

    save_pretrained = nn.Module.state_dict  # as of the Hub's mixin, which needs no config

    def __init__(self) -> None:
        super().__init__()
        layers = nn.ModuleList(NanoBlock() for _ in range(3))
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(50, 16), "h": layers, "ln_f": nn.LayerNorm(16)})
        self.lm_head = nn.Linear(16, 50, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        parts: Any = self.transformer
        x = parts.wte(words)
        for block in parts.h:
            x = block(x)
        return self.lm_head(parts.ln_f(x))  # type: ignore[no-any-return]


class NanoChatAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n_head = 2
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(16, 16, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (2, 8)).transpose(1, 2) for linear in (self.c_q, self.c_k, self.c_v))
        heads = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class NanoChatBlock(nn.Module):
    """With the names of nanochat, whose norms are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = NanoChatAttention()
        self.mlp = nn.Sequential(OrderedDict(c_fc=nn.Linear(16, 32), act=nn.GELU(), c_proj=nn.Linear(32, 16)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(rms_norm(x, (16,)))
        return x + self.mlp(rms_norm(x, (16,)))  # type: ignore[no-any-return]


class NanoChat(NanoGPT):
    """A language model of such layers, with a wiring that has to see queries, keys and values."""

    def __init__(self, scales: bool = False) -> None:
        super().__init__()
        self.transformer["h"] = nn.ModuleList(NanoChatBlock() for _ in range(3))
        if scales:
            self.scale = nn.Parameter(torch.ones(()))
            self.transformer["h"][2].register_forward_pre_hook(lambda _, args: (self.scale * args[0],))


def test_what_the_loop_does_between_layers_is_seen() -> None:
    """Also where it does nothing yet: in nanochat, what multiplies the stream starts at 1."""
    words = torch.randint(50, (2, 7))
    for variant in ("hyper_connections", "re_zero"):  # re_zero leaves the norms parts of the sub-layers
        torch.manual_seed(0)
        model = NanoChat().eval()
        before = model(words)
        torch.testing.assert_close(rewire(model, variant, batch=words)(words), before, rtol=1e-3, atol=1e-3)
    with pytest.raises(UserError, match=r"between transformer.h.1 and transformer.h.2 the model changes the stream"):
        rewire(NanoChat(scales=True), "hyper_connections", batch=words)


def timm_vit() -> Any:
    vit = pytest.importorskip(
        "timm.models.vision_transformer",
        reason="timm, or torchvision, which timm imports, is not installed",
        exc_type=ImportError,
    )
    return vit.VisionTransformer(img_size=16, patch_size=4, embed_dim=16, depth=3, num_heads=2, num_classes=5)


@pytest.mark.parametrize(("make", "variant"), [(NanoGPT, "hyper_connections"), (NanoChat, "mudd"), (timm_vit, "mhc")])
def test_models_without_a_framework(make: Any, variant: str) -> None:
    """Outputs, a step of training, recomputation from outside, adapters, one graph, weights into another one."""
    torch.manual_seed(0)
    model = make().eval()
    perturb(model)
    x = torch.randn(2, 3, 16, 16) if make is timm_vit else torch.randint(50, (2, 7))
    before, other = model(x), copy.deepcopy(model)
    rewire(model, variant, batch=x)
    assert (model(x) - before).abs().max() <= 1e-3 * before.std()
    perturb(model)
    torch.testing.assert_close(rewire(other, variant, batch=x)(x), before, rtol=1e-3, atol=1e-3)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x))

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))
    model.train()
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3))
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    # the whole model can be run again from outside; one layer of it cannot, for it needs those below
    found, expected = checkpoint(model, x, use_reentrant=False), model(x)
    torch.testing.assert_close(found, expected)
    grads = [
        torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
        for out in (found, expected)
    ]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)

    peft = pytest.importorskip("peft", reason="peft is not installed")
    target = {timm_vit: "fc1", NanoChat: "c_q"}.get(make, "attn")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=[target], init_lora_weights=False))
    assert (adapted(x) - expected).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("name", "variant", "saved", "target"),
    [
        ("llama", "hyper_connections", "mlp", "q_proj"),
        ("llama", "normformer", "down_proj", "q_proj"),
        ("bart", "sub_ln", "fc2", "q_proj"),
    ],
)
def test_a_copy_of_a_module_is_trained_in_its_place(name: str, variant: str, saved: str, target: str) -> None:
    """The copy brought the wiring's hooks along, which normalised the activations twice, or ended in a KeyError."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model, batch = rewire(tiny(name), variant, start="paper"), example(name)
    perturb(model, "wiring.")
    before = model(**batch).logits
    config = peft.LoraConfig(target_modules=[target], modules_to_save=[saved])
    adapted = peft.get_peft_model(model, config).eval()
    torch.testing.assert_close(adapted(**batch).logits, before, rtol=1e-4, atol=1e-4)
    perturb(adapted, "modules_to_save")
    out = adapted(**batch)
    out.loss.backward()
    assert all(p.grad is not None for key, p in adapted.named_parameters() if "modules_to_save" in key)
    torch.testing.assert_close(adapted.merge_and_unload()(**batch).logits, out.logits, rtol=1e-4, atol=1e-4)
