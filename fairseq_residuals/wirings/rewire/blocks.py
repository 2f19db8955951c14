"""Places of the layers in a model of somebody else, and what each of them consists of.

:func:`find_blocks` recognises the layers of Llama, Mistral, Qwen3, Gemma 3, GLM-4, OLMo 2, GPT-2, ViT, BERT,
ModernBERT, CLIP, DINOv2, wav2vec 2.0, T5, BART and Marian in transformers, those of PyTorch's own Transformers, of
timm's ViT and of nanoGPT, and whatever has the same names. A description is a guess until a model that is wired so was
seen to compute what it computed before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from fairseq_residuals.wirings.core.base import Kind
from fairseq_residuals.wirings.core.errors import UserError


@dataclass(frozen=True)
class SubLayerNames:
    """One sub-layer; names are those of modules within the layer, such as ``attention.output.dropout``."""

    kind: Kind
    enter: str
    """Module whose first argument, or ``hidden_states``, is what the sub-layer is fed."""
    leave: str = ""
    """Module whose output, or the first of it, is added to the stream; by default that of ``enter``."""
    norm: str = ""
    """Module that normalises what the sub-layer is fed, or the sum; none where it is empty."""
    dropout: str = ""
    """Attribute of the layer, a module or a probability, that acts between ``leave`` and the sum."""
    query: str = ""
    key: str = ""
    value: str = ""
    inner: str = ""
    """Last linear map: what it is fed are the heads' outputs, or the activations of an FFN. This and the three above
    are for wirings that have to see into a sub-layer."""


@dataclass(frozen=True)
class Blocks:
    """The layers of one encoder or decoder."""

    layers: str
    """Module that holds the layers, such as ``model.layers``; other names are those of modules within each layer."""
    sublayers: tuple[SubLayerNames, ...]
    norm: str = ""
    """Module that normalises the output of the last layer; none where it is empty."""
    post_norm: bool = False
    """Whether the norms of the sub-layers follow the sum, x = norm(x + F(x)); else x = x + F(norm(x))."""
    stack: Literal["encoder", "decoder"] = "decoder"
    heads: int = 0
    """Heads of attention; 0: as the model's config, or an attention module, has it."""

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Blocks:
        """Return what ``dataclasses.asdict`` made a dictionary of."""
        return cls(**settings | {"sublayers": tuple(SubLayerNames(**sub) for sub in settings["sublayers"])})


def _projections(module: str, query: str, key: str, value: str, inner: str) -> dict[str, str]:
    names = {"query": query, "key": key, "value": value, "inner": inner}
    return {name: f"{module}.{projection}" for name, projection in names.items()}


def _qkvo(module: str, output: str = "o_proj") -> dict[str, str]:
    return _projections(module, "q_proj", "k_proj", "v_proj", output)


def _bert_attention(kind: Kind, name: str) -> SubLayerNames:
    inside = _projections(f"{name}.self", "query", "key", "value", "") | {"inner": f"{name}.output.dense"}
    output = f"{name}.output"
    return SubLayerNames(kind, f"{name}.self", f"{output}.dropout", f"{output}.LayerNorm", **inside)


def _t5_attention(kind: Kind, index: int, name: str) -> SubLayerNames:
    inside = _projections(f"layer.{index}.{name}", "q", "k", "v", "o")
    return SubLayerNames(kind, f"layer.{index}.{name}", f"layer.{index}.dropout", f"layer.{index}.layer_norm", **inside)


def _t5_ffn(index: int) -> SubLayerNames:
    name = f"layer.{index}.DenseReluDense"
    return SubLayerNames("ffn", name, f"layer.{index}.dropout", f"layer.{index}.layer_norm", inner=f"{name}.wo")


def _bart_attention(kind: Kind, name: str) -> SubLayerNames:
    return SubLayerNames(kind, name, norm=f"{name}_layer_norm", dropout="dropout", **_qkvo(name, "out_proj"))


def _gpt2_attention(kind: Kind, name: str, norm: str) -> SubLayerNames:
    return SubLayerNames(kind, name, norm=norm, inner=f"{name}.c_proj")


_LLAMA_ATTENTION = SubLayerNames("self", "self_attn", **_qkvo("self_attn"))
_LLAMA_FFN = SubLayerNames("ffn", "mlp", inner="mlp.down_proj")
_GPT2_FFN = SubLayerNames("ffn", "mlp", norm="ln_2", inner="mlp.c_proj")
_VIT_ATTENTION = SubLayerNames("self", "attention", norm="layernorm_before", dropout="dropout", **_qkvo("attention"))
_VIT_FFN = SubLayerNames("ffn", "mlp", norm="layernorm_after", dropout="dropout", inner="mlp.fc2")
_TIMM_ATTENTION = SubLayerNames("self", "attn", "drop_path1", "norm1", inner="attn.proj")
_TIMM_FFN = SubLayerNames("ffn", "mlp", "drop_path2", "norm2", inner="mlp.fc2")
_BERT_FFN = SubLayerNames("ffn", "intermediate", "output.dropout", "output.LayerNorm", inner="output.dense")
_PYTORCH_ATTENTION = SubLayerNames("self", "self_attn", "dropout1", "norm1")
_BART_FFN = SubLayerNames("ffn", "fc1", "fc2", "final_layer_norm", "dropout", inner="fc2")

LAYOUTS: dict[str, tuple[Literal["encoder", "decoder"], tuple[SubLayerNames, ...]]] = {
    "Gemma 3": (
        "decoder",
        (
            replace(_LLAMA_ATTENTION, norm="input_layernorm", leave="post_attention_layernorm"),
            replace(_LLAMA_FFN, norm="pre_feedforward_layernorm", leave="post_feedforward_layernorm"),
        ),
    ),
    "GLM-4": (
        "decoder",
        (
            replace(_LLAMA_ATTENTION, norm="input_layernorm", leave="post_self_attn_layernorm"),
            replace(_LLAMA_FFN, norm="post_attention_layernorm", leave="post_mlp_layernorm"),
        ),
    ),
    "OLMo 2": (
        "decoder",
        (
            replace(_LLAMA_ATTENTION, leave="post_attention_layernorm"),
            replace(_LLAMA_FFN, leave="post_feedforward_layernorm"),
        ),
    ),
    "Llama": (
        "decoder",
        (replace(_LLAMA_ATTENTION, norm="input_layernorm"), replace(_LLAMA_FFN, norm="post_attention_layernorm")),
    ),
    "GPT-2 with cross-attention": (
        "decoder",
        (
            _gpt2_attention("self", "attn", "ln_1"),
            _gpt2_attention("cross", "crossattention", "ln_cross_attn"),
            _GPT2_FFN,
        ),
    ),
    "GPT-2, nanoGPT": ("decoder", (_gpt2_attention("self", "attn", "ln_1"), _GPT2_FFN)),
    "ViT": ("encoder", (_VIT_ATTENTION, _VIT_FFN)),
    "timm's ViT": ("encoder", (_TIMM_ATTENTION, _TIMM_FFN)),
    "CLIP": (
        "encoder",
        (
            SubLayerNames("self", "self_attn", norm="layer_norm1", **_qkvo("self_attn", "out_proj")),
            SubLayerNames("ffn", "mlp", norm="layer_norm2", inner="mlp.fc2"),
        ),
    ),
    "DINOv2": (
        "encoder",
        (
            SubLayerNames("self", "attention", "layer_scale1", "norm1", "drop_path"),
            SubLayerNames("ffn", "mlp", "layer_scale2", "norm2", "drop_path", inner="mlp.fc2"),
        ),
    ),
    "wav2vec 2.0": (
        "encoder",
        (
            SubLayerNames("self", "attention", "dropout", "layer_norm", **_qkvo("attention", "out_proj")),
            SubLayerNames("ffn", "feed_forward", norm="final_layer_norm", inner="feed_forward.output_dense"),
        ),
    ),
    # the first layer's norm of attention is none
    "ModernBERT": (
        "encoder",
        (SubLayerNames("self", "attn", norm="attn_norm"), SubLayerNames("ffn", "mlp", norm="mlp_norm", inner="mlp.Wo")),
    ),
    "BERT with cross-attention": (
        "decoder",
        (_bert_attention("self", "attention"), _bert_attention("cross", "crossattention"), _BERT_FFN),
    ),
    "BERT": ("encoder", (_bert_attention("self", "attention"), _BERT_FFN)),
    "T5's decoder": (
        "decoder",
        (_t5_attention("self", 0, "SelfAttention"), _t5_attention("cross", 1, "EncDecAttention"), _t5_ffn(2)),
    ),
    "T5's encoder": ("encoder", (_t5_attention("self", 0, "SelfAttention"), _t5_ffn(1))),
    "nn.TransformerDecoder": (
        "decoder",
        (
            _PYTORCH_ATTENTION,
            SubLayerNames("cross", "multihead_attn", "dropout2", "norm2"),
            SubLayerNames("ffn", "linear1", "dropout3", "norm3", inner="linear2"),
        ),
    ),
    "nn.TransformerEncoder": (
        "encoder",
        (_PYTORCH_ATTENTION, SubLayerNames("ffn", "linear1", "dropout2", "norm2", inner="linear2")),
    ),
    "BART's decoder": (
        "decoder",
        (_bart_attention("self", "self_attn"), _bart_attention("cross", "encoder_attn"), _BART_FFN),
    ),
    "BART's encoder": ("encoder", (_bart_attention("self", "self_attn"), _BART_FFN)),
}
"""Layers' owner and parts, by the models that have them; more particular ones first."""
TOP_NORMS = ("norm", "ln_f", "layernorm", "final_layernorm", "final_layer_norm", "final_norm", "layer_norm")


def find_blocks(model: nn.Module) -> list[Blocks]:
    """Return the layers of a model: of one stack, or of an encoder and a decoder, in that order.

    Whether norms follow the sum is not told by names: ``post_norm`` is False in all of them.

    Raises:
        UserError: there are none of a known structure, or several that are no pair.
    """
    found = list(_candidates(model))
    if not found:
        raise UserError(
            f"{type(model).__name__} has no layers of a structure that is known ({', '.join(LAYOUTS)}); describe them"
            " by blocks=Blocks(layers=..., sublayers=(SubLayerNames(...), ...))"
        )
    crossing = [any(sub.kind == "cross" for sub in blocks.sublayers) for blocks in found]
    if len(found) > 1 and crossing != [False, True]:
        raise UserError(
            f"{type(model).__name__} has layers in several places, {', '.join(b.layers for b in found)}: rewire the"
            " module that holds those you mean"
        )
    return found


def _candidates(model: nn.Module) -> Iterator[Blocks]:
    for path, module in model.named_modules():
        layers = list(module.children())
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len({type(layer) for layer in layers}) != 1:
            continue
        names = {name for name, _ in layers[0].named_modules()}
        parent, _, _ = path.rpartition(".")
        for stack, sublayers in LAYOUTS.values():
            if all(names.issuperset(filter(None, (sub.enter, sub.leave, sub.norm))) for sub in sublayers):
                above = parent.rpartition(".")[0]
                owners = {owner: dict(model.get_submodule(owner).named_children()) for owner in (parent, above)}
                norms = (f"{owner}.{name}" for owner in owners for name in TOP_NORMS if name in owners[owner])
                norm = next(norms, "").lstrip(".")
                yield Blocks(path, tuple(_shown(sub, names) for sub in sublayers), norm, stack=stack)
                break


def _shown(sub: SubLayerNames, names: set[str]) -> SubLayerNames:
    """Leave out the projections that a layer does not have, which makes one of three for instance."""
    query, key, value, inner = (name if name in names else "" for name in (sub.query, sub.key, sub.value, sub.inner))
    return replace(sub, query=query, key=key, value=value, inner=inner)
