"""Layers of the released models that ``ships_in`` names, as transformers builds them, are wired as ours.

Each layer of :data:`MODELS` is built from a tiny configuration. Its attention and FFN are replaced by the same small
maps as ours has, our norms by its norms in the order in which they run, and the stream after the layer is compared.
Of the other models that ``ships_in`` names, :data:`GOLDEN` has the file of a whole model, and :data:`MISSING` says why
there is none here, and what proves the wiring instead.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from golden_files import FOLDER
from perturbation import perturb
from torch import Tensor, nn

from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.base import Connection, Kind, Site, StackShape, Variant
from fairseq_residuals.wirings.core.norms import is_norm
from fairseq_residuals.wirings.core.registry import VARIANTS
from fairseq_residuals.wirings.core.wiring import Wiring

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

DIM, DEPTH, AT = 16, 4, 2
"""Channels, layers, and the number of the layer that is compared."""
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd"), DIM),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head"), 2),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), DEPTH),
    "residual_multiplier": 0.3,
    "hidden_size_per_layer_input": 0,
    "new_decoder_architecture": False,
    # of models with an encoder and a decoder
    "d_model": DIM,
    "encoder_attention_heads": 2,
    # of an image
    "image_size": 3,
}
ARGUMENTS = {"layer_idx": AT, "dim": DIM, "input_resolution": (3, 3), "num_heads": 2, "input_dimensions": (1, 3)}
"""What constructors and forward passes of layers take by these names."""

SUBLAYERS = ("Attention", "Mamba", "MLP", "Mlp", "MoE", "Moe", "Experts", "FeedForward", "SwiGLU", "Intermediate")
"""In the names of their classes."""


@dataclass(frozen=True)
class Model:
    """A layer of transformers, and our wiring."""

    named: str
    """In ``ships_in`` of the variant."""
    module: str
    layer: str
    wiring: str
    beside: int = 1
    """Values that its attention gives beside its output."""
    inside: tuple[str, ...] = ()
    """Other parts of its sub-layers, which let pass what they are given."""
    attention: str = ""
    ffn: str = ""
    """The first part of its FFN; like that of its attention, where no name of a class tells."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Further ones of its configuration."""
    learned: str = ""
    """A regular expression for those of our parameters that it has beside norms; the others stay as they start."""


class Map(nn.Module):
    """In the place of attention or an FFN."""

    def __init__(self, beside: int) -> None:
        super().__init__()
        self.beside, self.linear = beside, nn.Linear(DIM, DIM)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        y = self.linear(args[0] if args else kwargs["hidden_states"]).tanh()
        return (y, *[None] * self.beside) if self.beside else y


class Nothing(nn.Module):
    """In the place of a second FFN beside the first, such as shared experts, and of what routes to it."""

    def __init__(self, beside: int) -> None:
        super().__init__()
        self.beside = beside

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        y = torch.zeros_like(args[0])
        return (y, *[None] * self.beside) if self.beside else y


class Through(nn.Module):
    """In the place of what is no part of the wiring, such as embeddings per layer."""

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        return x


def tiny_config(module: Any, layer_class: Any, settings: dict[str, Any]) -> Any:
    """The configuration of the models that have this layer."""
    annotation = inspect.signature(layer_class).parameters["config"].annotation
    known = [c for name, c in vars(module).items() if name.endswith("Config") and isinstance(c, type)]
    # a class without its annotation is for the model's only configuration, or for that of its text
    known.sort(key=lambda c: (c is transformers.PreTrainedConfig, "Text" not in c.__name__, len(c.__name__)))
    config_class = annotation if annotation in known else known[0]
    accepted = inspect.signature(config_class).parameters
    settings = SIZES | settings
    config = config_class(**{name: value for name, value in settings.items() if name in accepted})
    config = config.get_text_config()
    config._attn_implementation = "eager"
    if config.hidden_size != DIM:
        for name in settings.keys() & vars(config).keys():
            setattr(config, name, settings[name])
    return config


def build_layer(model: Model) -> tuple[nn.Module, list[Map]]:
    """The layer of transformers away from its initial values, with maps for attention and FFN."""
    module = importlib.import_module(f"transformers.models.{model.module}.modeling_{model.module}")
    layer_class = getattr(module, model.layer)
    taken = ARGUMENTS.keys() & inspect.signature(layer_class).parameters.keys()
    with torch.device("meta"):
        config = tiny_config(module, layer_class, dict(model.settings))
        layer = layer_class(config, **{name: ARGUMENTS[name] for name in taken})
    maps: dict[bool, Map] = {}
    for name in model.inside:
        layer.set_submodule(name, Through())
    for is_ffn, name in ((False, model.attention), (True, model.ffn)):
        if name:
            layer.set_submodule(name, maps.setdefault(is_ffn, Map(0 if is_ffn else model.beside)))
    said = {name.partition(".")[0] for name in (*model.inside, model.attention, model.ffn)}
    for name, child in layer.named_children():
        kind = type(child).__name__
        if name in said or "Norm" in kind or "LayerScale" in kind:
            continue
        if "PLE" in kind:
            setattr(layer, name, Through())
        elif "Router" in kind:
            setattr(layer, name, Nothing(beside=2))
        elif any(part in kind for part in SUBLAYERS):
            is_ffn = "Attention" not in kind and "Mamba" not in kind
            put = Nothing(0) if is_ffn in maps else maps.setdefault(is_ffn, Map(0 if is_ffn else model.beside))
            setattr(layer, name, put)
    layer.to_empty(device="cpu")
    torch.manual_seed(0)
    for tensor in (*layer.parameters(), *layer.buffers()):
        nn.init.normal_(tensor, std=0.5)
    return layer.eval(), [maps[False], maps[True]]


def run_theirs(layer: Any, x: Tensor) -> Tensor:
    """(B, T, C) -> (B, T, C)"""
    _, *others = inspect.signature(layer.forward).parameters.values()
    needed = {
        p.name: ARGUMENTS.get(p.name) for p in others if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    }
    out = layer(x.clone(), **needed)
    return out[0] if isinstance(out, tuple) else out


def run_ours(variant: Variant, connections: list[Connection], maps: list[Map], x: Tensor) -> Tensor:
    """(B, T, C) -> (B, T, C); what enters the layer is not what enters the stack."""
    s = {"x": x}
    for connection, sublayer in zip(connections, maps, strict=True):
        s, _ = connection(s, lambda h, s, f=sublayer, c=connection: (c.outer(f.linear(h).tanh()), None, s))
    return variant.after_layer(AT, s)["x"]


def in_order(norms: list[nn.Module], run: Callable[[], Tensor]) -> list[nn.Module]:
    """``norms`` as they run."""
    seen: list[nn.Module] = []
    handles = [norm.register_forward_hook(lambda module, args, out: seen.append(module)) for norm in norms]
    run()
    for handle in handles:
        handle.remove()
    return seen


def others(modules: list[nn.Module], but: list[nn.Module]) -> list[Tensor]:
    """The parameters and buffers, but those of some modules."""
    left_out = {id(t) for module in but for t in (*module.parameters(), *module.buffers())}
    return [t for m in modules for t in (*m.parameters(), *m.buffers()) if id(t) not in left_out]


BERT, BART = ("attention.output.dense", "output.dense"), ("activation_fn", "fc2")
MOE = (
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "pre_feedforward_layernorm_2",
)
"""Of DiffusionGemma, whose FFN is the sum of a dense one and of experts, each under a norm."""
EXPERTS = tuple({"num_experts": 2, "top_k_experts": 1, "moe_intermediate_size": 8}.items())
PRE, SANDWICH, SUB = "pre_ln(norm=rms)", "sandwich_ln(norm=rms)", "post_sublayer_norm(norm=rms)"
SCALED, SCALAR = "residual_multiplier(norm=rms,multiplier=0.3)", "layer_scalar(norm=rms)"
DEPTH_SCALED = "residual_multiplier(norm=rms,multiplier=depth)"
HYBRID = (
    ("layer_types", ["full_attention"] * DEPTH),
    ("mamba_n_heads", 2),
    ("layer_types", ["linear_attention"] * DEPTH),
)
MODELS = [
    *(
        Model(named, module, layer, "post_ln", inside=BERT, attention="attention.self", ffn="intermediate")
        for named, module, layer in (
            ("BERT", "bert", "BertLayer"),
            ("RoBERTa", "roberta", "RobertaLayer"),
            ("XLM-R", "xlm_roberta", "XLMRobertaLayer"),
        )
    ),
    Model("BART", "bart", "BartEncoderLayer", "post_ln", inside=BART, ffn="fc1"),
    Model("mBART", "mbart", "MBartEncoderLayer", "pre_ln", inside=BART, ffn="fc1"),
    Model("NLLB-200", "m2m_100", "M2M100EncoderLayer", "pre_ln", inside=BART, ffn="fc1"),
    Model("GPT-2", "gpt2", "GPT2Block", "pre_ln"),
    Model("Qwen to Qwen3", "qwen2", "Qwen2DecoderLayer", PRE),
    Model("LLaMA", "llama", "LlamaDecoderLayer", PRE),
    Model("Mistral", "mistral", "MistralDecoderLayer", PRE),
    Model("Qwen to Qwen3", "qwen3", "Qwen3DecoderLayer", PRE),
    Model("Jais 2", "jais2", "Jais2DecoderLayer", "pre_ln"),
    Model("Small 4", "mistral4", "Mistral4DecoderLayer", PRE),
    Model("Large 4", "mistral_large4", "MistralLarge4TextDecoderLayer", PRE, beside=2),
    Model("MiniMax M2", "minimax_m2", "MiniMaxM2DecoderLayer", PRE),
    Model("M3", "minimax_m3_vl", "MiniMaxM3VLDecoderLayer", PRE),
    Model("Kimi-Linear", "kimi_linear", "KimiLinearDecoderLayer", PRE, beside=0),
    Model("K-EXAONE", "exaone_moe", "ExaoneMoeDecoderLayer", PRE),
    Model("Hy3", "hy_v3", "HYV3DecoderLayer", PRE),
    Model("Laguna", "laguna", "LagunaDecoderLayer", PRE),
    Model("Step 3.7", "step3p7", "Step3p7DecoderLayer", PRE),
    Model("Solar Open", "solar_open", "SolarOpenDecoderLayer", PRE),
    Model("LFM2", "lfm2", "Lfm2DecoderLayer", PRE),
    Model("VaultGemma", "vaultgemma", "VaultGemmaDecoderLayer", PRE),
    Model("Gemma 2 and 3", "gemma2", "Gemma2DecoderLayer", SANDWICH),
    Model("Gemma 2 and 3", "gemma3", "Gemma3DecoderLayer", SANDWICH),
    Model("GLM-4-0414", "glm4", "Glm4DecoderLayer", SANDWICH),
    Model("GLM-4.1V", "glm4v", "Glm4vTextDecoderLayer", SANDWICH),
    Model("GLM-OCR", "glm_ocr", "GlmOcrTextDecoderLayer", SANDWICH),
    Model("GLM-Image", "glm_image", "GlmImageTextDecoderLayer", SANDWICH),
    Model("Kolibri-1", "kolibri1", "Kolibri1DecoderLayer", SANDWICH),
    Model("LFM3", "lfm3", "Lfm3DecoderLayer", SANDWICH),
    Model("Trinity", "afmoe", "AfmoeDecoderLayer", SANDWICH),
    Model("OLMo 2", "olmo2", "Olmo2DecoderLayer", SUB),
    Model("OLMo 3", "olmo3", "Olmo3DecoderLayer", SUB),
    Model("FlexOlmo", "flex_olmo", "FlexOlmoDecoderLayer", SUB),
    Model("Olmo-Hybrid's attention layers", "olmo_hybrid", "OlmoHybridAttentionDecoderLayer", SUB),
    Model("EXAONE 4", "exaone4", "Exaone4DecoderLayer", SUB),
    Model("4.5", "exaone4_5", "Exaone4_5_DecoderLayer", SUB),
    Model("Swin V2", "swinv2", "Swinv2Layer", "post_sublayer_norm", inside=("output",)),
    Model("GPT-J", "gptj", "GPTJBlock", "parallel"),
    Model("Falcon-7B", "falcon", "FalconDecoderLayer", "parallel"),
    Model(
        "Falcon-40B",
        "falcon",
        "FalconDecoderLayer",
        "parallel(norms=2)",
        settings=(("new_decoder_architecture", True), ("num_kv_heads", 2)),
    ),
    Model("CodeGen", "codegen", "CodeGenBlock", "parallel"),
    Model("Phi-1 to 2", "phi", "PhiDecoderLayer", "parallel"),
    Model("Command-R", "cohere", "CohereDecoderLayer", "parallel"),
    Model("Command R7B", "cohere2", "Cohere2DecoderLayer", "parallel"),
    Model("Command A+", "cohere2_moe", "Cohere2MoeDecoderLayer", "parallel"),
    Model("North-Micro-Vision", "cohere_compass", "CohereCompassDecoderLayer", "parallel"),
    Model("GPT-NeoX", "gpt_neox", "GPTNeoXLayer", "parallel(norms=2)"),
    Model("Granite 3", "granite", "GraniteDecoderLayer", SCALED),
    Model("4", "granitemoehybrid", "GraniteMoeHybridDecoderLayer", SCALED, settings=HYBRID[:2]),
    Model("hybrid", "granitemoehybrid", "GraniteMoeHybridDecoderLayer", SCALED, 0, settings=HYBRID[1:]),
    Model("MiniCPM", "minicpm3", "MiniCPM3DecoderLayer", DEPTH_SCALED, settings=(("scale_depth", 1.4),)),
    Model("Granite-swash", "granite_swa", "GraniteSWADecoderLayer", SCALED),
    Model("granite-docling", "granite_docling", "GraniteDoclingTextDecoderLayer", SCALED),
    Model("ESM C", "esmc", "EsmcLayer", "residual_multiplier(multiplier=3)"),
    Model("Muse-Glimmer-30B", "muse_glimmer", "MuseGlimmerTextDecoderLayer", "peri_ln(norm=rms)"),
    Model("HyperCLOVA X SEED Think", "hyperclovax", "HyperCLOVAXDecoderLayer", "peri_ln(norm=rms,multiplier=0.3)"),
    Model("Beam-1.0", "beam", "BeamDecoderLayer", "beam_residual(norm=rms)"),
    Model("Gemma 4", "gemma4", "Gemma4TextDecoderLayer", SCALAR),
    Model("unified", "gemma4_unified", "Gemma4UnifiedTextDecoderLayer", SCALAR),
    Model("DiffusionGemma", "diffusion_gemma", "DiffusionGemmaDecoderTextLayer", SCALAR, inside=MOE, settings=EXPERTS),
    Model("EmbeddingGemma 2", "embedding_gemma2", "EmbeddingGemma2EncoderLayer", SCALAR),
    Model("DINOv2", "dinov2", "Dinov2Layer", "layer_scale"),
    Model("DINOv3", "dinov3_vit", "DINOv3ViTLayer", "layer_scale"),
    Model("Mimi", "mimi", "MimiTransformerLayer", "layer_scale"),
    Model("Qwen3-Omni's code2wav", "qwen3_omni_moe", "Qwen3OmniMoeCode2WavTransformerLayer", "layer_scale(norm=rms)"),
    Model("Doge", "doge", "DogeDecoderLayer", "zaya_residual(norm=rms)", learned=r"of_stream\.scale"),
]


@torch.no_grad()
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.module)
def test_a_layer_is_wired_as_ours(model: Model) -> None:
    wiring = Wiring.parse(model.wiring)
    assert model.named in wiring.parts[0].variant.ships_in
    layer, maps = build_layer(model)
    variant = wiring.build(StackShape("decoder", DEPTH, DIM, 2 * DIM, 2, 0, DEPTH, cross=False))
    places: list[tuple[Kind, int]] = [("self", 0), ("ffn", 1)]
    sites = [Site(**vars(variant.shape), kind=kind, layer=AT, index=i, n_sub=2) for kind, i in places]
    connections = [variant.connect(site) for site in sites]
    x = torch.randn(2, 3, DIM)
    theirs = in_order([m for m in layer.modules() if "Norm" in type(m).__name__], lambda: run_theirs(layer, x))
    our_norms = [m for connection in connections for m in connection.modules() if is_norm(m)]
    ours = in_order(our_norms, lambda: run_ours(variant, connections, maps, x))
    learned = {id(p) for c in connections for name, p in c.named_parameters() if re.search(model.learned, name)}
    mine = [t for t in others(connections, ours) if id(t) in learned]
    for tensor, value in zip(mine, others([layer], [*theirs, *maps]), strict=True):
        tensor.copy_(value)
    by_norm = dict(zip(ours, theirs, strict=True))
    for connection in connections:
        for name, child in connection.named_children():
            setattr(connection, name, by_norm.get(child, child))
    torch.testing.assert_close(run_ours(variant, connections, maps, x), run_theirs(layer, x))


GOLDEN = {
    "Kimi K3": "kimi_k3_block_attnres",
    "Inkling-2": "inkling2_block_attnres",
    "nanochat": "nanochat",
    "MiniMax-Text-01 and M1": "minimax_scaled_postln",
    "Qwen3.8-Flash-Next": "qwen4_gated_residual",
    "Hy4-preview": "hy4_ihc",
    "Gemma 3n": "laurel_altup_gemma3n",
    "CaiT": "layerscale",
    "DeepSeek-V4": "mhc_hf_dsv4",
    "GLM-5.3-Flash": "glm5_mhc_mean_close",
    "MUDDPythia": "muddformer",
    "MUDDFormer-2.8B": "muddformer",
    "Muse-Spark-Open-816B-A42B": "muse_residual_gate",
    "T5Gemma": "t5gemma_sandwich_encdec",
    "LongCat-Flash": "longcat_scmoe",
    "one of modded-nanogpt's records, February 2026": "two_lane_moddednanogpt",
    "modded-nanogpt's records since November 2024": "unet_x0_moddednanogpt",
    "NeoMME-260M": "neomme_x0_read",
    "ZAYA1-8B": "zaya_residual_scaling",
}
"""Files of whole models in tests/golden, which test_goldens.py compares."""
NOT_THERE = "not in transformers"
MISSING = {
    "GLM-130B": (NOT_THERE, "THUDM/SwissArmyTransformer@c23a8bf: sat/model/official/glm130B_model.py"),
    "PaLM": (NOT_THERE, "Chowdhery et al. 2022, section 2; the same equation in parallel_gptj_S.npz"),
    "CogView": (NOT_THERE, "THUDM/CogView@189a12b: mpu/sparse_transformer.py; the same equation in sandwich_S.npz"),
    "Pangu Ultra": ("neither code nor weights are public", "Yin et al. 2025; the same equation in sandwich_S.npz"),
    "BEiT-3": (NOT_THERE, "microsoft/torchscale@4d1e0e8, which builds it: subln_enc_S.npz"),
    "Kosmos-1": (NOT_THERE, "microsoft/torchscale@4d1e0e8, which builds it: subln_lm_S.npz"),
    "Pythia": ("transformers builds it by GPT-NeoX's class", "GPT-NeoX above"),
    "BitNet b1.58": ("its norms are inside of its sub-layers", "test_bitnet_is_wired_as_ours"),
    "Nemotron-Labs-Dory 1.0": ("its stream is of another length", "test_dory_is_wired_as_ours"),
}
"""Why no layer of a model is compared above, and what shows how it is wired."""


def test_every_model_that_is_named_is_in_a_table() -> None:
    known = {model.named for model in MODELS} | GOLDEN.keys() | MISSING.keys()
    for name, variant in VARIANTS.items():
        rest = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "", variant.ships_in)
        for model in sorted(known, key=len, reverse=True):
            rest = rest.replace(model, "")
        assert not re.sub(r"norm_type=rms:|on normed embeddings:|\b(also|and|to)\b|[,; ]", "", rest), name
    assert all((FOLDER / f"{file}_S.npz").is_file() for file in GOLDEN.values())
    named = {file for _, proof in MISSING.values() for file in re.findall(r"\w+\.npz", proof)}
    assert named and all((FOLDER / file).is_file() for file in named)


@torch.no_grad()
def test_bitnet_is_wired_as_ours() -> None:
    """Layer by layer, and on top: its own attention and FFN, with norms inside, and another activation."""
    sizes = {"num_hidden_layers": DEPTH, "intermediate_size": 24, "vocab_size": 9, "hidden_act": "silu"}
    config = transformers.BitNetConfig(hidden_size=DIM, num_attention_heads=2, num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    theirs: Any = transformers.BitNetModel(config).eval()
    perturb(theirs, scale=0.5)
    stack = build_stack(
        "sub_ln",
        depth=DEPTH,
        dim=DIM,
        heads=2,
        ffn_dim=24,
        task="language_model",
        ffn="swiglu",
        rotary=config.rope_parameters["rope_theta"],
        bias=False,
        norm_type="rms",
        norm_eps=config.rms_norm_eps,
        batch_first=True,
    ).eval()
    ours = stack.state_dict()
    for i, layer in enumerate(theirs.layers):
        attention, ffn = layer.self_attn, layer.mlp
        values = {
            "self_attn.q_proj": attention.q_proj.weight,
            "self_attn.k_proj": attention.k_proj.weight,
            "self_attn.v_proj": attention.v_proj.weight,
            "self_attn.out_proj": attention.o_proj.weight,
            "self_attn_connection.inner_norm": attention.attn_sub_norm.weight,
            "self_attn_connection.norm": layer.input_layernorm.weight,
            "fc1": torch.cat([ffn.gate_proj.weight, ffn.up_proj.weight]),
            "fc2": ffn.down_proj.weight,
            "ffn_connection.inner_norm": ffn.ffn_sub_norm.weight,
            "ffn_connection.norm": layer.post_attention_layernorm.weight,
        }
        for name, value in values.items():
            ours.pop(f"{i}.{name}.weight").copy_(value)
    ours.pop("wiring.norm.weight").copy_(theirs.norm.weight)
    assert not ours, "every parameter of ours is one of theirs"
    words = torch.randint(9, (2, 5))
    streams: list[Tensor] = []
    for i in range(DEPTH):
        stack[i].register_forward_hook(lambda module, args, out: streams.append(out[0]["x"].transpose(0, 1)))
    output = stack(theirs.embed_tokens(words))
    output = output[0] if isinstance(output, tuple) else output
    found = theirs(words, output_hidden_states=True)
    torch.testing.assert_close(streams[:-1], list(found.hidden_states[1:-1]))
    torch.testing.assert_close(output, found.last_hidden_state)


@torch.no_grad()
def test_dory_is_wired_as_ours() -> None:
    """Layer by layer: its attention and FFN are fed vectors of norm 1, and normalise queries and keys themselves."""
    of_layers = {"num_hidden_layers": DEPTH, "n_input_layers": DEPTH, "n_recurrent_layers": 0, "n_output_layers": 0}
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": DIM // 2, "intermediate_size": 24}
    config = transformers.DoryConfig(hidden_size=DIM, vocab_size=9, initializer_range=DIM**-0.5, **of_layers, **sizes)
    torch.manual_seed(0)
    theirs: Any = perturb(transformers.DoryModel(config).eval(), scale=0.5)
    shape = StackShape("decoder", DEPTH, DIM, 24, 2, 0, DEPTH, cross=False)
    variant = Wiring.parse("ngpt").build(shape)
    x = theirs.norm(theirs.embed_tokens(torch.randint(9, (2, 5))))
    s = variant.open(x)
    for i, layer in enumerate(theirs.layers):
        placed = theirs.rotary_emb(x, torch.arange(5)[None], layer.attention_type)
        ffn, rates = layer.mlp, {"self": layer.lambda_1, "ffn": layer.lambda_2}
        for index, kind in enumerate(rates):
            connection: Any = variant.connect(Site(**vars(shape), kind=kind, layer=i, index=index, n_sub=2))  # type: ignore[arg-type]
            connection.rate.copy_(rates[kind])
            h = s["x"] / DIM**0.5
            s = connection.write(s, connection.outer(ffn(h) if index else layer.self_attn(h, placed, None)[0]))
        x = layer(x, attention_mask=None, position_embeddings=placed)
        torch.testing.assert_close(variant.close(s) / DIM**0.5, theirs.norm(x))
