"""Models of transformers that are rewired: what they compute, before and after."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_residuals import Blocks, SubLayerNames, UserError, build_stack, rewire, wrap
from fairseq_residuals.wirings.core.registry import list_variants
from fairseq_residuals.wirings.rewire.layers import width_of
from fairseq_residuals.wirings.rewire.outputs import example_for
from fairseq_residuals.wirings.rewire.rewiring import Rewiring
from fairseq_residuals.wirings.rewire.traced import trace_blocks
from tests.models_of_transformers import BUILDERS, DECODER, IMAGES, POST_NORM, built, causal, example, perturb, tiny
from tests.rotation import rotated

KEPT = [
    *("altup", "attention_residuals", "backout", "delta_attnres", "dense_former", "dlcl_pre", "frac_connections"),
    *("gated_residual", "hyper_connections", "identity_hc", "laurel_lr", "laurel_pa", "laurel_rw", "layer_scale"),
    *("mhc", "mudd", "pre_ln", "re_zero", "t_fixup", "unet_skip", "x0_lambdas", "zaya_residual"),
]
"""Wirings that start as a Pre-LN model by options and values, or of themselves."""
SOME = ("attention_residuals", "hyper_connections", "mudd")
REASONS = ("cannot be used there", "has to see", "use build_stack", "several times", "the place of the FFN")
"""Why a wiring has no meaning in layers of somebody else."""
ONE_MATRIX = {("gpt2", "mudd"): "GPT2Attention", ("gpt_neox", "mudd"): "GPTNeoXLayer"}
"""What does not show queries, keys or values, which one matrix makes there."""


def outputs(model: Any, name: str) -> Tensor:
    with torch.no_grad():
        return model(**example(name)).logits  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, variant) for name in ("llama", "t5", "gptj") for variant in KEPT),
        *((name, variant) for name in ("mistral", "qwen3", "gemma3", "gpt2", "gpt_neox", "vit") for variant in SOME),
        ("llama", "pre_ln:0-0,hyper_connections:1-2"),
        ("llama", "attention_residuals:0-1,pre_ln:2-2"),
    ],
)
def test_a_wiring_starts_as_the_model(name: str, variant: str) -> None:
    model = tiny(name)
    before, parameters = outputs(model, name), {key: value.clone() for key, value in model.state_dict().items()}
    if one := ONE_MATRIX.get((name, variant)):
        with pytest.raises(UserError, match=f"which {one} does not show"):
            rewire(model, variant)
        return
    assert rewire(model, variant) is model
    after = outputs(model, name)
    assert (after - before).abs().max() <= 1e-3 * before.std()
    # names and values of the model's own parameters stay
    own = {key: value for key, value in model.state_dict().items() if ".wiring." not in f".{key}"}
    assert own.keys() == parameters.keys()
    assert all(torch.equal(own[key], parameters[key]) for key in own)
    # and what is new is not idle
    new = [parameter for key, parameter in model.named_parameters() if ".wiring." in f".{key}"]
    if new:
        perturb(model, "wiring.")
        assert not torch.allclose(outputs(model, name), before, rtol=1e-2)


LINEAR = {
    **{"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "linear_num_value_heads": 4},
    **{"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
MAMBA = {
    **{"vocab_size": 50, "num_hidden_layers": 3, "hidden_size": 32, "state_size": 8, "num_heads": 4, "head_dim": 16},
    **{"n_groups": 1, "chunk_size": 4},
}
GRANITE = {
    **{"num_key_value_heads": 2, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    **{"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "shared_intermediate_size": 16},
    **{"num_local_experts": 2, "num_experts_per_tok": 1, "residual_multiplier": 0.3},
}
OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "layers return lists": (built("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", **DECODER), "post_ln"),
    "no norm in one place": (
        built("ModernBertForMaskedLM", "ModernBertConfig", **DECODER, cls_token_id=1, sep_token_id=2),
        "hyper_connections",
    ),
    "norms without parameters": (causal("Olmo"), "gated_residual"),
    "branches that are multiplied": (causal("Granite", num_key_value_heads=2, residual_multiplier=0.3), "mudd"),
    "experts beside an FFN, multiplied": (causal("GraniteMoeHybrid", **GRANITE), "attention_residuals"),
    "an FFN that sees all in one row": (causal("OPT", ffn_dim=48, word_embed_proj_dim=32), "attention_residuals"),
    "one sub-layer in a layer": (built("Mamba2ForCausalLM", "Mamba2Config", **MAMBA), "attention_residuals"),
    "norms of 1 + weight with a bias": (causal("Nemotron", num_key_value_heads=2), "mudd"),
    "norms before and after": (causal("Glm4", num_key_value_heads=2, head_dim=8), "gated_residual"),
    "linear attention in three layers of four": (
        built("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", **DECODER | LINEAR),
        "attention_residuals",
    ),
    "linear maps that hold another": (causal("Moshi", head_dim=8, ffn_dim=96), "hyper_connections"),
    "a norm that runs below the layers as well": (causal("NanoChat", num_key_value_heads=2), "mudd"),
    "norms first, with BERT's names": (
        built("EsmForMaskedLM", "EsmConfig", **DECODER, mask_token_id=3, token_dropout=False),
        "hyper_connections",
    ),
    # their last norms are beside what holds the layers
    "CLIP's text": (built("CLIPTextModel", "CLIPTextConfig", **DECODER), "attention_residuals"),
    "BLIP's pictures": (built("BlipVisionModel", "BlipVisionConfig", **IMAGES), "mhc"),
    "DINOv2": (built("Dinov2Model", "Dinov2Config", **IMAGES, layerscale_value=0.3), "attention_residuals"),
    "wav2vec 2.0": (BUILDERS["wav2vec2"], "post_ln"),
    "wav2vec 2.0 with norms first": (
        lambda: BUILDERS["wav2vec2"](do_stable_layer_norm=True, feat_extract_norm="layer"),
        "attention_residuals",
    ),
}
"""Models with something of their own, and a wiring that starts as each is."""


@pytest.mark.parametrize("name", OTHERS)
def test_other_models(name: str) -> None:
    torch.manual_seed(0)
    make, variant = OTHERS[name]
    model = make().eval()
    batch = {"input_values": torch.randn(2, 400)} if "wav2vec" in name else example_for(model)
    perturb(model)
    with torch.no_grad():
        before = model(**batch)[0]
        after = rewire(model, variant, batch=batch)(**batch)[0]
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    wired = [layer for stack in model.modules() if isinstance(stack, Rewiring) for layer in stack.wired]
    assert all(layer.kinds in (["self"], ["self", "ffn"]) for layer in wired)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("variant", ["hyper_connections", "attention_residuals", "post_ln"])
def test_transformers_of_pytorch(variant: str, batch_first: bool) -> None:
    """In evaluation without gradients as well, where PyTorch has kernels that see no sub-layers, and nested tensors."""
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 2, 2, 32, 0.0, norm_first=variant != "post_ln", batch_first=batch_first).eval()
    perturb(model)
    sides = [torch.randn(2, n, 16) if batch_first else torch.randn(n, 2, 16) for n in (6, 4)]
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 3:] = True
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    nests = model.encoder.use_nested_tensor
    with pytest.raises(UserError, match="b2t cannot start"):
        rewire(model, "b2t", batch=tuple(sides))
    assert model.encoder.use_nested_tensor is nests
    with torch.no_grad():
        before = model(*sides, **masks)
    rewire(model, variant, batch=tuple(sides))
    with torch.no_grad():
        torch.testing.assert_close(model(*sides, **masks), before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(*sides, **masks), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_inputs_of_norms_may_be_as_small_as_their_eps(dtype: torch.dtype) -> None:
    """In a deep model that is not trained, the eps of each norm matters to all norms above."""
    torch.manual_seed(0)
    model = BUILDERS["llama"](num_hidden_layers=8, hidden_size=64).eval().to(dtype)
    before = outputs(model, "llama")
    rewire(model, "attention_residuals")
    torch.testing.assert_close(outputs(model, "llama"), before, atol=4e-4 if dtype == torch.float32 else 0.02, rtol=0)


@pytest.mark.parametrize("name", [*POST_NORM, "olmo2"])
def test_norms_elsewhere(name: str) -> None:
    """Post-LN models start as Post-LN alone; those with norms on branches alone as streams that need no norm."""
    model, before = tiny(name), outputs(tiny(name), name)
    kept, refused = ("post_ln", "hyper_connections") if name in POST_NORM else ("hyper_connections", "post_ln")
    with pytest.raises(UserError, match=f"{refused} cannot start as the model that was: outputs differ by"):
        rewire(model, refused)
    rewire(model, kept)
    torch.testing.assert_close(outputs(model, name), before, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_llama_becomes_olmo_2() -> None:
    """Its norms of queries and keys are over all heads: of keys there are fewer, and of queries they are wide."""
    theirs, ours = tiny("olmo2", num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6), tiny("llama", head_dim=16)
    rewire(ours, "post_sublayer_norm", {"qk_norm": True}, start="paper")
    for name, value in ours.state_dict().items():
        named = name.replace("wiring.self_attn_connection", "self_attn").replace("post_attention", "post_feedforward")
        value.copy_(theirs.get_parameter(named.replace("input", "post_attention")))
    torch.testing.assert_close(outputs(ours, "llama"), outputs(theirs, "olmo2"))


@pytest.mark.parametrize(("variant", "name"), rotated(list_variants(), ["qwen3", "bart"]))
def test_refused_or_kept(name: str, variant: str) -> None:
    """A refusal leaves the model as it was; what is frozen stays frozen."""
    model = tiny(name)
    frozen = [p.requires_grad_(False) for key, p in model.named_parameters() if ".0." in key]
    before, keys, config = outputs(model, name), list(model.state_dict()), model.config.to_dict()
    try:
        rewire(model, variant)
    except UserError:
        assert torch.equal(outputs(model, name), before)
        assert list(model.state_dict()) == keys
        assert model.config.to_dict() == config
        assert sum(not p.requires_grad for p in model.parameters()) == len(frozen)
    else:
        assert (outputs(model, name) - before).abs().max() <= 1e-3 * before.std()
    assert not any(p.requires_grad for p in frozen)


@pytest.mark.parametrize(("variant", "name"), rotated(list_variants(), ["llama", "bert"]))
def test_a_wiring_starts_as_the_paper_has_it(name: str, variant: str) -> None:
    model = tiny(name)
    reason = ""
    try:
        rewire(model, variant, start="paper")
    except UserError as error:
        reason = str(error)
    if reason:
        assert any(known in reason for known in REASONS)
        return
    model.train()
    model(**example(name)).loss.backward()
    assert not [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize(
    "variant", ["b2t", "sandwich_ln", "hyper_connections", "mudd", "sub_ln", "attention_residuals"]
)
def test_it_is_the_librarys_wiring(variant: str) -> None:
    """Sub-layers of GPT-2's form, in a loop of somebody else: what build_stack computes of the same weights."""
    stack: Any = build_stack(variant, depth=2, dim=16, heads=2, ffn_dim=32, task="language_model").eval()
    perturb(stack)
    model = Framework(stack).eval()
    wired = rewire(model, variant, start="paper", batch=torch.randn(2, 5, 16), blocks=described())
    copy_wiring(stack, wired, {"self_attn": "norm1", "ffn": "norm2"})
    x = torch.randn(2, 5, 16)
    torch.testing.assert_close(wired(x), stack(x.transpose(0, 1)).transpose(0, 1), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def copy_wiring(stack: Any, wired: Any, norms: dict[str, str]) -> None:
    """Give a rewired framework what the wiring of a stack of the library has learned; ``norms`` by sub-layer."""
    theirs = {f"wiring.variant.{key.removeprefix('wiring.')}": v for key, v in stack.state_dict().items()}
    for i in range(2):
        for key, value in stack[i].state_dict().items():
            theirs[f"blocks.{i}.wiring.{key}"] = value
    for key, p in wired.named_parameters():
        if ".wiring." in f".{key}":
            p.copy_(theirs[key])
    for i, block in enumerate(wired.blocks):
        for kind, norm in norms.items():
            copy_norm(stack[i].get_submodule(f"{kind}_connection"), block.get_submodule(norm))
    copy_norm(stack.wiring, wired.norm)


def copy_norm(owner: nn.Module, norm: nn.Module) -> None:
    if isinstance(owner._modules.get("norm"), nn.Module):
        norm.load_state_dict(owner.norm.state_dict())  # type: ignore[union-attr,operator]
        norm.eps = owner.norm.eps  # type: ignore[assignment,union-attr]


class Attention(nn.Module):
    """Causal attention, batch first, with the weights of the library's."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = own.q_proj, own.k_proj, own.v_proj, own.out_proj

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (2, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, own: Any) -> None:
        super().__init__()
        self.attn, self.fc1, self.fc2 = Attention(own.self_attn), own.fc1, own.fc2
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(self.fc1(self.norm2(x)).relu())  # type: ignore[no-any-return]


class Framework(nn.Module):
    def __init__(self, stack: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(copy.deepcopy(Block(stack[i])) for i in range(2))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]


def described() -> Blocks:
    inside = {"query": "attn.q_proj", "key": "attn.k_proj", "value": "attn.v_proj", "inner": "attn.out_proj"}
    attention = SubLayerNames("self", "attn", norm="norm1", **inside)
    return Blocks("blocks", (attention, SubLayerNames("ffn", "fc1", "fc2", "norm2", inner="fc2")), "norm", heads=2)


class SideBySide(nn.Module):
    """Attention and an FFN that read one input: a framework's layer, or, without a norm, a sub-layer of the library."""

    def __init__(self, block: Block, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.attn, self.fc1, self.fc2, self.norm = block.attn, block.fc1, block.fc2, norm

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.norm is None else self.norm(x)
        both = self.attn(h) + self.fc2(self.fc1(h).relu())
        return both if self.norm is None else x + both


@pytest.mark.parametrize("variant", ["hyper_connections", "mhc", "attention_residuals", "post_ln", "re_zero"])
def test_branches_side_by_side_are_one_sublayer(variant: str) -> None:
    model: Any = framework()
    stack: Any = wrap(variant, [[SideBySide(block)] for block in model.blocks], dim=16, kinds=("self",))
    perturb(stack)
    model.blocks = nn.ModuleList(SideBySide(block, nn.LayerNorm(16)) for block in copy.deepcopy(model.blocks))
    for block, layer in zip(model.blocks, stack, strict=False):
        block.load_state_dict(layer.self_attn.state_dict(), strict=False)
    blocks = Blocks("blocks", (SubLayerNames("self", "", "attn", "norm", beside="fc2"),), "norm")
    x = torch.randn(2, 5, 16)
    wired = rewire(model, variant, start="paper", batch=x, blocks=blocks)
    copy_wiring(stack, wired, {"self_attn": "norm"})
    torch.testing.assert_close(wired(x), stack(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "dropout"), [("GPTNeoX", "hidden_dropout"), ("Phi", "resid_pdrop"), ("Falcon", "hidden_dropout")]
)
def test_branches_side_by_side_are_dropped(family: str, dropout: str) -> None:
    """With probability 1 nothing is left of them, as in the model that was."""
    words = torch.randint(3, 50, (2, 9))
    model = causal(family, embd_pdrop=0.0)().train()
    model.config.use_cache = False
    dropped = causal(family, **{dropout: 1.0}, embd_pdrop=0.0)().train()
    dropped.load_state_dict(model.state_dict())
    expected = dropped(words).logits
    torch.testing.assert_close(rewire(dropped, "hyper_connections")(words).logits, expected)
    assert not torch.allclose(model(words).logits, expected)


def framework() -> Framework:
    return Framework(build_stack("pre_ln", depth=2, dim=16, heads=2, ffn_dim=32))


def test_heads_and_ffns_may_be_as_wide_as_they_like() -> None:
    """HybridNorm normalises each head; those of the second layer, of 16 channels, make 32 of a stream of 16."""
    model: Any = framework().eval()
    block, x = model.blocks[1], torch.randn(2, 5, 16)
    block.attn.q_proj, block.attn.k_proj, block.attn.v_proj = (nn.Linear(16, 32) for _ in range(3))
    block.attn.out_proj, block.fc1, block.fc2 = nn.Linear(32, 16), nn.Linear(16, 64), nn.Linear(64, 16)
    rewire(copy.deepcopy(model), "normformer", start="paper", batch=x, blocks=described())(x)
    with pytest.raises(UserError, match="say how many heads it has"):
        rewire(model, "hybrid_norm", batch=x, blocks=replace(described(), heads=0))
    rewire(model, "hybrid_norm", {"norm_type": "rms"}, start="paper", batch=x, blocks=described())
    queries: list[Tensor] = []
    for block in model.blocks:
        block.attn.q_proj.register_forward_hook(lambda *call: queries.append(call[2]))
    model(x)
    for query in queries:
        size = query.unflatten(-1, (2, -1)).square().mean(-1)
        torch.testing.assert_close(size, torch.ones_like(size), rtol=1e-3, atol=1e-3)


def test_a_model_that_is_not_trained() -> None:
    """NanoChat keeps its last norm, in which an embedding of padding, which is 0, would show the eps."""
    torch.manual_seed(0)
    rewire(causal("NanoChat", num_key_value_heads=2)().eval(), "hyper_connections")


def test_quantized_weights_stay() -> None:
    """The wiring has the precision of what is not quantized."""
    model = tiny("llama")
    expected = outputs(model, "llama")
    weights = [nn.Parameter(torch.zeros(2).to(torch.float8_e4m3fn), requires_grad=False) for _ in range(3)]
    for layer, weight in zip(model.model.layers, weights, strict=True):
        layer.self_attn.quantized = weight
    torch.testing.assert_close(outputs(rewire(model, "mhc"), "llama"), expected, rtol=1e-4, atol=1e-4)
    assert not any(weight.float().any() for weight in weights)


def test_a_module_brings_the_hooks_of_another_along() -> None:
    """So does PyTorch when it puts quantized maps in the places of others; each value residual would act twice."""
    model = rewire(tiny("llama"), "pre_ln", {"value_residual": "identity"}, start="paper")
    expected = outputs(model, "llama")
    for layer in model.model.layers:
        old, layer.self_attn.v_proj = layer.self_attn.v_proj, nn.Linear(32, 32, bias=False)
        layer.self_attn.v_proj.weight = old.weight
        layer.self_attn.v_proj.register_forward_hook(*old._forward_hooks.values())
    torch.testing.assert_close(outputs(model, "llama"), expected)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("llama", {"decoder": "model.layers"}),
        ("t5", {"encoder": "encoder.block", "decoder": "decoder.block"}),
        ("bert", {"encoder": "bert.encoder.layer"}),
        ("vit", {"encoder": "vit.layers"}),
    ],
)
def test_where_layers_are(name: str, places: dict[str, str]) -> None:
    found = trace_blocks(tiny(name), example_for(tiny(name)))
    assert {blocks.stack: blocks.layers for blocks in found} == places
    for blocks in found:
        layer = next(tiny(name).get_submodule(blocks.layers).children())
        assert width_of(layer.get_submodule(blocks.sublayers[-1].inner)) == 48  # of the FFN, inside


class NanoBlock(nn.Module):
    """With the names of nanoGPT."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = norm(16), nn.Linear(16, 16), norm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 16), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


def test_a_decoder_of_a_pair_alone() -> None:
    """DeepNet's constants are those of a decoder with cross-attention, three sub-layers a layer."""
    batch = {"input_ids": torch.randint(3, 50, (2, 9)), "encoder_hidden_states": torch.randn(2, 7, 32)}
    decoder = rewire(tiny("bart"), "deepnet", start="paper").model.decoder
    alone = rewire(tiny("bart").model.decoder, "deepnet", start="paper", batch=batch)
    torch.testing.assert_close(alone(**batch)[0], decoder(**batch)[0])
