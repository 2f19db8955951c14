"""Layers of the released models that ``ships_in`` names, as transformers builds them, are wired as ours.

Each layer is built from a tiny configuration. Its attention and FFN are replaced by the same small maps as ours has,
our norms by its norms in the order in which they run, and the stream after the layer is compared.

Of what else ``ships_in`` names, tests/golden has files of whole models (Hy4, Muse Spark, Qwen3.8-Flash-Next, LongCat,
GLM-5.3, DeepSeek-V4, MiniMax-Text-01, NeoMME, ZAYA1, Inkling-2, Gemma 3n, T5Gemma, MiniCPM's rule, nanochat). Not in
transformers 5.23.0 are Kimi K3, MUDDFormer, modded-nanogpt, Pangu Ultra, CogView, CaiT, GLM-130B and PaLM. BitNet's
norms and Swin's, and layers of DiffusionGemma, Granite's hybrids and code2wav need more than a tiny configuration and
two maps: their files were read.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_residuals.wirings.core.base import Connection, Kind, Site, StackShape, Variant
from fairseq_residuals.wirings.core.norms import is_norm
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
}

SUBLAYERS = ("Attention", "MLP", "MoE", "Moe", "FeedForward", "SwiGLU")
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


class Map(nn.Module):
    """In the place of attention or an FFN."""

    def __init__(self, beside: int) -> None:
        super().__init__()
        self.beside, self.linear = beside, nn.Linear(DIM, DIM)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        y = self.linear(args[0] if args else kwargs["hidden_states"]).tanh()
        return (y, *[None] * self.beside) if self.beside else y


class Nothing(Map):
    """In the place of a second FFN beside the first, such as shared experts."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.zeros_like(args[0])


class Through(nn.Module):
    """In the place of embeddings per layer, which are no part of the wiring."""

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        return x


def tiny_config(module: Any, layer_class: Any) -> Any:
    """The configuration of the models that have this layer."""
    annotation = inspect.signature(layer_class).parameters["config"].annotation
    known = [c for name, c in vars(module).items() if name.endswith("Config") and isinstance(c, type)]
    # a class without its annotation is for the model's only configuration, or for that of its text
    known.sort(key=lambda c: (c is transformers.PreTrainedConfig, "Text" not in c.__name__, len(c.__name__)))
    config_class = annotation if annotation in known else known[0]
    accepted = inspect.signature(config_class).parameters
    config = config_class(**{name: value for name, value in SIZES.items() if name in accepted})
    config = config.get_text_config()
    config._attn_implementation = "eager"
    if config.hidden_size != DIM:
        for name in SIZES.keys() & vars(config).keys():
            setattr(config, name, SIZES[name])
    return config


def build_layer(model: Model) -> tuple[nn.Module, list[Map]]:
    """The layer of transformers away from its initial values, with maps for attention and FFN."""
    module = importlib.import_module(f"transformers.models.{model.module}.modeling_{model.module}")
    layer_class = getattr(module, model.layer)
    numbered = "layer_idx" in inspect.signature(layer_class).parameters
    with torch.device("meta"):
        layer = layer_class(tiny_config(module, layer_class), **({"layer_idx": AT} if numbered else {}))
    maps: dict[bool, Map] = {}
    for name, child in layer.named_children():
        kind = type(child).__name__
        if "PLE" in kind:
            setattr(layer, name, Through())
        elif any(part in kind for part in SUBLAYERS) and "Norm" not in kind:
            is_ffn = "Attention" not in kind
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
    needed = {p.name: None for p in others if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
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


PRE, SANDWICH, SUB = "pre_ln(norm=rms)", "sandwich_ln(norm=rms)", "post_sublayer_norm(norm=rms)"
SCALED, SCALAR = "residual_multiplier(norm=rms,multiplier=0.3)", "layer_scalar(norm=rms)"
MODELS = [
    Model("LLaMA", "llama", "LlamaDecoderLayer", PRE),
    Model("Mistral", "mistral", "MistralDecoderLayer", PRE),
    Model("Qwen3", "qwen3", "Qwen3DecoderLayer", PRE),
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
    Model("Gemma 2", "gemma2", "Gemma2DecoderLayer", SANDWICH),
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
    Model("Olmo-Hybrid", "olmo_hybrid", "OlmoHybridAttentionDecoderLayer", SUB),
    Model("EXAONE 4", "exaone4", "Exaone4DecoderLayer", SUB),
    Model("4.5", "exaone4_5", "Exaone4_5_DecoderLayer", SUB),
    Model("GPT-J", "gptj", "GPTJBlock", "parallel"),
    Model("Falcon-7B", "falcon", "FalconDecoderLayer", "parallel"),
    Model("CodeGen", "codegen", "CodeGenBlock", "parallel"),
    Model("Phi-1", "phi", "PhiDecoderLayer", "parallel"),
    Model("Command-R", "cohere", "CohereDecoderLayer", "parallel"),
    Model("Command R7B", "cohere2", "Cohere2DecoderLayer", "parallel"),
    Model("Command A+", "cohere2_moe", "Cohere2MoeDecoderLayer", "parallel"),
    Model("North-Micro-Vision", "cohere_compass", "CohereCompassDecoderLayer", "parallel"),
    Model("GPT-NeoX", "gpt_neox", "GPTNeoXLayer", "parallel(norms=2)"),
    Model("Granite 3", "granite", "GraniteDecoderLayer", SCALED),
    Model("Granite-swash", "granite_swa", "GraniteSWADecoderLayer", SCALED),
    Model("granite-docling", "granite_docling", "GraniteDoclingTextDecoderLayer", SCALED),
    Model("ESM C", "esmc", "EsmcLayer", "residual_multiplier(multiplier=3)"),
    Model("Muse-Glimmer-30B", "muse_glimmer", "MuseGlimmerTextDecoderLayer", "peri_ln(norm=rms)"),
    Model("HyperCLOVA X", "hyperclovax", "HyperCLOVAXDecoderLayer", "peri_ln(norm=rms,multiplier=0.3)"),
    Model("Beam-1.0", "beam", "BeamDecoderLayer", "beam_residual(norm=rms)"),
    Model("Gemma 4", "gemma4", "Gemma4TextDecoderLayer", SCALAR),
    Model("unified", "gemma4_unified", "Gemma4UnifiedTextDecoderLayer", SCALAR),
    Model("EmbeddingGemma 2", "embedding_gemma2", "EmbeddingGemma2EncoderLayer", SCALAR),
    Model("DINOv2", "dinov2", "Dinov2Layer", "layer_scale"),
    Model("DINOv3", "dinov3_vit", "DINOv3ViTLayer", "layer_scale"),
    Model("Mimi", "mimi", "MimiTransformerLayer", "layer_scale"),
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
    for mine, value in zip(others(connections, ours), others([layer], [*theirs, *maps]), strict=True):
        mine.copy_(value)
    by_norm = dict(zip(ours, theirs, strict=True))
    for connection in connections:
        for name, child in connection.named_children():
            setattr(connection, name, by_norm[child])
    torch.testing.assert_close(run_ours(variant, connections, maps, x), run_theirs(layer, x))
