"""Small models of transformers, randomly initialised and moved away from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

DECODER: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "attention_dropout": 0.0,
}
PAIR: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
    "dropout": 0.0,
}
BARE = {
    name: DECODER[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
}
IMAGES: dict[str, Any] = BARE | {"image_size": 16, "patch_size": 4}
GEMMA = {
    **{"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4},
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GPT = {
    **{"vocab_size": 50, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": 1},
    **{"eos_token_id": 2, "pad_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
WAV2VEC2 = {
    **{"conv_dim": (8, 8), "conv_kernel": (3, 3), "conv_stride": (2, 2), "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0},
}
T5 = {
    **{"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4},
    **{"decoder_start_token_id": 0, "dropout_rate": 0.0},
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def built(model: str, config: str, **own: Any) -> Callable[..., Any]:
    """A function that builds a model of a config, by their names."""
    return lambda **sizes: getattr(transformers, model)(getattr(transformers, config)(**own | sizes))


def causal(family: str, **own: Any) -> Callable[..., Any]:
    return built(f"{family}ForCausalLM", f"{family}Config", **DECODER | own)


BUILDERS: dict[str, Callable[..., Any]] = {
    "llama": causal("Llama", num_key_value_heads=2),
    "mistral": causal("Mistral", num_key_value_heads=2, sliding_window=4),
    # heads wider than the stream
    "qwen3": causal("Qwen3", num_key_value_heads=2, head_dim=16),
    "olmo2": causal("Olmo2"),
    # transformers saves other names of parameters
    "exaone": built("LlamaForCausalLM", "ExaoneConfig", **DECODER, num_key_value_heads=2),
    # draws some parameters on the CPU, though it is made without weights
    "diffllama": causal("DiffLlama", num_key_value_heads=2),
    "gemma3": built("Gemma3ForCausalLM", "Gemma3TextConfig", **DECODER, **GEMMA),
    # attention and FFN side by side, with one norm or two
    "gptj": built("GPTJForCausalLM", "GPTJConfig", **GPT, rotary_dim=4),
    "gpt_neox": causal("GPTNeoX", hidden_dropout=0.0),
    "gpt2": built("GPT2LMHeadModel", "GPT2Config", **GPT),
    "vit": built("ViTForImageClassification", "ViTConfig", **IMAGES, **NO_DROPOUT),
    "bert": built("BertForMaskedLM", "BertConfig", **DECODER, **NO_DROPOUT),
    "wav2vec2": built("Wav2Vec2Model", "Wav2Vec2Config", **BARE, **WAV2VEC2),
    "t5": built("T5ForConditionalGeneration", "T5Config", **T5),
    "bart": built("BartForConditionalGeneration", "BartConfig", **PAIR),
    "marian": built("MarianMTModel", "MarianConfig", **PAIR),
}
POST_NORM = ("bert", "bart", "marian")
"""Models whose norms follow the sums."""


def tiny(name: str, seed: int = 0, **sizes: float) -> Any:
    """A model in evaluation, of other sizes where its builder takes them; every parameter has a random part."""
    torch.manual_seed(seed)
    model = BUILDERS[name](**sizes).eval()
    perturb(model)
    return model


@torch.no_grad()
def perturb(model: torch.nn.Module, names: str = "") -> None:
    """Move the parameters with ``names`` in their names away from where they are; constants (sines) stay."""
    for name, p in model.named_parameters():
        if names in name and p.requires_grad:
            p.add_(0.1 * torch.randn(p.shape))


def example(name: str) -> dict[str, torch.Tensor]:
    """What the model is trained on."""
    torch.manual_seed(3)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    words = torch.randint(3, 50, (2, 9))
    return {"input_ids": words, "labels": words, "attention_mask": torch.ones_like(words)}
