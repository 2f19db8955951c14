"""Places of the layers in a model of somebody else, and what each of them consists of.

:func:`find_blocks` recognises the layers of Llama, Mistral, Qwen3, Qwen3.5, Gemma 3, GLM-4, OLMo 2, LFM2, Jamba,
GPT-2, ViT, BERT, ModernBERT, CLIP, DINOv2, wav2vec 2.0, T5, BART and Marian in transformers, those of PyTorch's own
Transformers, of timm's ViT, Meta's Llama, torchtitan, LitGPT, nanoGPT and nanochat, and whatever has the same names. A
description is a guess until a model that is wired so was seen to compute what it computed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """Module whose first argument, ``hidden_states``, or else first tensor is what the sub-layer is fed."""
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
    function: Literal["", "rms_norm", "layer_norm"] = ""
    """Function of torch.nn.functional that the layer's code calls in place of ``norm``, without gain and bias."""


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
    """Heads of attention; 0: as an attention module, or the model's config, has it."""
    dim: int = 0
    """Channels of the stream; 0: as many as the first layer is given."""
    others: tuple[tuple[SubLayerNames, ...], ...] = ()
    """Sub-layers of those layers that are of another structure, such as the ones with linear attention."""

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Blocks:
        """Return what ``dataclasses.asdict`` made a dictionary of.

        Raises:
            UserError: another version made it.
        """
        try:
            first, *others = (
                tuple(SubLayerNames(**sub) for sub in sublayers)
                for sublayers in (settings["sublayers"], *settings["others"])
            )
            return cls(**settings | {"sublayers": first, "others": tuple(others)})
        except (KeyError, TypeError) as error:
            raise UserError(
                f"the config describes the layers as another version did ({error}): rewire the model anew, give it the"
                " weights by load_state_dict, and save it"
            ) from None

    def of_layer(self, layer: nn.Module) -> tuple[SubLayerNames, ...]:
        """Return the sub-layers of a layer, without the projections that it does not have.

        Raises:
            UserError: it has not the modules of any structure.
        """
        names = {name for name, _ in layer.named_modules()}
        for sublayers in (self.sublayers, *self.others):
            if _fits(sublayers, names):
                return tuple(_shown(sub, names) for sub in sublayers)
        wanted = {name for sub in self.sublayers for name in (sub.enter, sub.leave, sub.norm)}
        raise UserError(f"a layer of {self.layers} has no {' and no '.join(sorted(wanted - names - {''}))}")


def _projections(module: str, query: str, key: str, value: str, inner: str) -> dict[str, Any]:
    names = {"query": query, "key": key, "value": value, "inner": inner}
    return {name: f"{module}.{projection}" for name, projection in names.items()}


def _qkvo(module: str, output: str = "o_proj") -> dict[str, Any]:
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
_JAMBA_FFN = SubLayerNames("ffn", "feed_forward", norm="pre_ff_layernorm", inner="feed_forward.down_proj")
_LFM_FFN = SubLayerNames("ffn", "feed_forward", norm="ffn_norm", inner="feed_forward.w2")
_GPT2_FFN = SubLayerNames("ffn", "mlp", norm="ln_2", inner="mlp.c_proj")
_VIT_ATTENTION = SubLayerNames("self", "attention", norm="layernorm_before", dropout="dropout", **_qkvo("attention"))
_VIT_FFN = SubLayerNames("ffn", "mlp", norm="layernorm_after", dropout="dropout", inner="mlp.fc2")
_TIMM_ATTENTION = SubLayerNames("self", "attn", "drop_path1", "norm1", inner="attn.proj")
_TIMM_FFN = SubLayerNames("ffn", "mlp", "drop_path2", "norm2", inner="mlp.fc2")
_BERT_FFN = SubLayerNames("ffn", "intermediate", "output.dropout", "output.LayerNorm", inner="output.dense")
_PYTORCH_ATTENTION = SubLayerNames("self", "self_attn", "dropout1", "norm1")
_DINO_FFN = SubLayerNames("ffn", "mlp", "layer_scale2", "norm2", "drop_path", inner="mlp.fc2")
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
    "Qwen3.5's linear attention": (
        "decoder",
        (
            SubLayerNames("self", "linear_attn", norm="input_layernorm"),
            replace(_LLAMA_FFN, norm="post_attention_layernorm"),
        ),
    ),
    "Jamba's attention": ("decoder", (replace(_LLAMA_ATTENTION, norm="input_layernorm"), _JAMBA_FFN)),
    "Jamba's Mamba": ("decoder", (SubLayerNames("self", "mamba", norm="input_layernorm"), _JAMBA_FFN)),
    "LFM2's attention": (
        "decoder",
        (SubLayerNames("self", "self_attn", norm="operator_norm", **_qkvo("self_attn", "out_proj")), _LFM_FFN),
    ),
    "LFM2's convolution": ("decoder", (SubLayerNames("self", "conv", norm="operator_norm"), _LFM_FFN)),
    "GPT-2 with cross-attention": (
        "decoder",
        (
            _gpt2_attention("self", "attn", "ln_1"),
            _gpt2_attention("cross", "crossattention", "ln_cross_attn"),
            _GPT2_FFN,
        ),
    ),
    "GPT-2, nanoGPT": ("decoder", (_gpt2_attention("self", "attn", "ln_1"), _GPT2_FFN)),
    # norms are functions, in its own code
    "nanochat": (
        "decoder",
        (
            SubLayerNames(
                *("self", "attn", "attn.c_proj"),
                function="rms_norm",
                **_projections("attn", "c_q", "c_k", "c_v", "c_proj"),
            ),
            SubLayerNames("ffn", "mlp", "mlp.c_proj", function="rms_norm", inner="mlp.c_proj"),
        ),
    ),
    "Meta's Llama, torchtitan": (
        "decoder",
        (
            SubLayerNames(
                *("self", "attention"), norm="attention_norm", **_projections("attention", "wq", "wk", "wv", "wo")
            ),
            SubLayerNames("ffn", "feed_forward", norm="ffn_norm", inner="feed_forward.w2"),
        ),
    ),
    "LitGPT": (
        "decoder",
        (
            SubLayerNames("self", "attn", norm="norm_1", inner="attn.proj"),
            SubLayerNames("ffn", "mlp", norm="norm_2", inner="mlp.proj"),
        ),
    ),
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
            SubLayerNames(
                *("self", "attention.attention", "layer_scale1", "norm1", "drop_path"),
                **_projections("attention", "attention.query", "attention.key", "attention.value", "output.dense"),
            ),
            _DINO_FFN,
        ),
    ),
    "DINOv3": (
        "encoder",
        (
            SubLayerNames("self", "attention", "layer_scale1", "norm1", "drop_path", **_qkvo("attention")),
            replace(_DINO_FFN, inner="mlp.down_proj"),
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
TOP_NORMS = (
    "norm",
    "ln_f",
    "layernorm",
    "final_layernorm",
    "final_layer_norm",
    "final_norm",
    "layer_norm",
    "embedding_norm",
)


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
        if not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        found = [_layout(layer) for layer in module.children()]
        names = list(dict.fromkeys(name for name in found if name is not None))
        if not found or None in found:
            continue
        parent, _, _ = path.rpartition(".")
        above = parent.rpartition(".")[0]
        owners = {owner: dict(model.get_submodule(owner).named_children()) for owner in (parent, above)}
        norms = (f"{owner}.{name}" for owner in owners for name in TOP_NORMS if name in owners[owner])
        stack = LAYOUTS[names[0]][0]
        sublayers, *others = (LAYOUTS[name][1] for name in names)
        yield Blocks(path, sublayers, next(norms, "").lstrip("."), stack=stack, others=tuple(others))


def _layout(layer: nn.Module) -> str | None:
    """Return the name of the first structure whose modules a layer has."""
    names = {name for name, _ in layer.named_modules()}
    return next((name for name, (_, sublayers) in LAYOUTS.items() if _fits(sublayers, names)), None)


def _fits(sublayers: Iterable[SubLayerNames], names: set[str]) -> bool:
    return all(names.issuperset(filter(None, (sub.enter, sub.leave, sub.norm))) for sub in sublayers)


def _shown(sub: SubLayerNames, names: set[str]) -> SubLayerNames:
    """Leave out the projections that a layer does not have, which makes one of three for instance."""
    query, key, value, inner = (name if name in names else "" for name in (sub.query, sub.key, sub.value, sub.inner))
    return replace(sub, query=query, key=key, value=value, inner=inner)
