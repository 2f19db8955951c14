"""Places of the layers in a model of somebody else, and what each of them consists of.

:func:`find_blocks` recognises the layers of the models in :data:`LAYOUTS`, and whatever has the same names, such as
those of Mistral, Qwen3, OPT and Marian. A description is a guess until a model that is wired so was seen to compute
what it computed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Module whose first argument, ``hidden_states``, or else first tensor is what the sub-layer is fed.

    It is empty where that is what the layer is fed, as with ``beside``.
    """
    leave: str = ""
    """Module whose output, or the first of it, is added to the stream; by default that of ``enter``."""
    norm: str = ""
    """Module that normalises what the sub-layer is fed, or the sum; none where it is empty."""
    dropout: str = ""
    """Attribute of the layer, a module or a probability, that acts between ``leave`` and the sum, and so ``beside``."""
    query: str = ""
    key: str = ""
    value: str = ""
    inner: str = ""
    """Last linear map: what it is fed are the heads' outputs, or the activations of an FFN. This and the three above
    are for wirings that have to see into a sub-layer."""
    function: Literal["", "rms_norm", "layer_norm"] = ""
    """Function of torch.nn.functional that the layer's code calls in place of ``norm``, without gain and bias."""
    scale: str = ""
    """Attribute of the layer, a number by which what leaves is multiplied."""
    beside: str = ""
    """Module whose output is added with that of ``leave``, before which it does not run, as parts of one sub-layer.

    An FFN beside attention for instance.
    """
    norm_beside: str = ""
    """Norm of that FFN, where it has its own; ``norm`` is attention's. Both stay where they are."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules that a layer has to have, some of them empty."""
        return self.enter, self.leave, self.beside, *self.norms

    @property
    def norms(self) -> tuple[str, ...]:
        """Its norms: none, one, or one for each of two branches."""
        return tuple(filter(None, (self.norm, self.norm_beside)))

    @property
    def movable_norm(self) -> str:
        """Norm that a wiring may call in places of its own; empty where each branch has one."""
        return "" if self.norm_beside else self.norm


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
    idle: tuple[str, ...] = ()
    """Modules of layers, of no sub-layer, that did not run when the model was rewired: what they add would be lost."""

    @property
    def crosses(self) -> bool:
        """Whether the layers have cross-attention."""
        return any(sub.kind == "cross" for sub in self.sublayers)

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
            idle = tuple(settings.get("idle", ()))
            return cls(**settings | {"sublayers": first, "others": tuple(others), "idle": idle})
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
        modules = dict(layer.named_modules())
        for sublayers in (self.sublayers, *self.others):
            if _fits(sublayers, layer, modules):
                return tuple(_shown(sub, modules) for sub in sublayers)
        wanted = {name for sub in self.sublayers for name in sub.needs}
        raise UserError(f"a layer of {self.layers} has no {' and no '.join(sorted(wanted - modules.keys() - {''}))}")


def _attention(
    enter: str, norm: str = "", leave: str = "", inside: str = "", kind: Kind = "self", **more: Any
) -> SubLayerNames:
    """Name attention; ``inside`` are the projections of queries, keys and values, and that of outputs, in ``enter``."""
    names = zip(("query", "key", "value", "inner"), inside.split(), strict=False)
    return SubLayerNames(kind, enter, leave, norm, **{part: f"{enter}.{name}" for part, name in names} | more)


def _ffn(enter: str, norm: str = "", leave: str = "", inner: str = "", **more: Any) -> SubLayerNames:
    return SubLayerNames("ffn", enter, leave, norm, inner=inner, **more)


def _side_by_side(attention: str, ffn: str, norm: str, inside: str = "", **more: Any) -> tuple[SubLayerNames]:
    """Name attention and an FFN that read one input; ``norm`` is that of both, but where there is a ``norm_beside``."""
    return (replace(_attention(attention, norm, attention, inside, **more), enter="", beside=ffn),)


def _bert_attention(name: str, norm: str, kind: Kind = "self") -> SubLayerNames:
    output, inside = f"{name}.output", "query key value"
    return _attention(f"{name}.self", norm, f"{output}.dropout", inside, kind, inner=f"{output}.dense")


def _t5_attention(index: int, name: str, kind: Kind = "self") -> SubLayerNames:
    layer = f"layer.{index}"
    return _attention(f"{layer}.{name}", f"{layer}.layer_norm", f"{layer}.dropout", "q k v o", kind)


def _t5_ffn(index: int) -> SubLayerNames:
    layer = f"layer.{index}"
    name = f"{layer}.DenseReluDense"
    return _ffn(name, f"{layer}.layer_norm", f"{layer}.dropout", f"{name}.wo")


def _bart_attention(name: str, kind: Kind = "self") -> SubLayerNames:
    return _attention(name, f"{name}_layer_norm", "", _OUT_PROJ, kind, dropout="dropout")


_O_PROJ, _OUT_PROJ = "q_proj k_proj v_proj o_proj", "q_proj k_proj v_proj out_proj"
_BERT_FFN = _ffn("intermediate", "output.LayerNorm", "output.dropout", "output.dense")
_BART_FFN = _ffn("fc1", "final_layer_norm", "fc2", "fc2", dropout="dropout")

DECODERS = {
    "Gemma 3": (
        _attention("self_attn", "input_layernorm", "post_attention_layernorm", _O_PROJ),
        _ffn("mlp", "pre_feedforward_layernorm", "post_feedforward_layernorm", "mlp.down_proj"),
    ),
    # experts and the FFN that all positions have read one norm
    **{
        f"Granite 4's {mixer}": (
            _attention(mixer, "input_layernorm", inside=_O_PROJ, scale="residual_multiplier"),
            _ffn(
                enter="post_attention_layernorm",
                norm="post_attention_layernorm",
                leave="block_sparse_moe",
                beside="shared_mlp",
                scale="residual_multiplier",
            ),
        )
        for mixer in ("self_attn", "mamba")
    },
    "Llama": (
        _attention("self_attn", "input_layernorm", inside=_O_PROJ),
        _ffn("mlp", "post_attention_layernorm", inner="mlp.down_proj"),
    ),
    "GPT-2 with cross-attention": (
        _attention("attn", "ln_1", inner="attn.c_proj"),
        _attention("crossattention", "ln_cross_attn", kind="cross", inner="crossattention.c_proj"),
        _ffn("mlp", "ln_2", inner="mlp.c_proj"),
    ),
    "OpenCLIP": (
        _attention("attn", "ln_1", "ls_1", inner="attn.out_proj"),
        _ffn("mlp", "ln_2", "ls_2", "mlp.c_proj"),
    ),
    "GPT-2, nanoGPT": (_attention("attn", "ln_1", inner="attn.c_proj"), _ffn("mlp", "ln_2", inner="mlp.c_proj")),
    # norms are functions, in its own code
    "nanochat": (
        _attention("attn", "", "attn.c_proj", "c_q c_k c_v c_proj", function="rms_norm"),
        _ffn("mlp", "", "mlp.c_proj", "mlp.c_proj", function="rms_norm"),
    ),
    "GPT-J, CodeGen": _side_by_side("attn", "mlp", "ln_1", _OUT_PROJ),
    "Phi": _side_by_side("self_attn", "mlp", "input_layernorm", "q_proj k_proj v_proj dense", dropout="resid_dropout"),
    "StableLM, side by side": _side_by_side("self_attn", "dropout", "input_layernorm", _O_PROJ),
    "Cohere": _side_by_side("self_attn", "mlp", "input_layernorm", _O_PROJ),
    # it drops the sum of both; here each is dropped
    "Falcon": _side_by_side("self_attention", "mlp", "input_layernorm", dropout="hidden_dropout"),
    "Falcon with two norms": _side_by_side(
        "self_attention", "mlp", "ln_attn", norm_beside="ln_mlp", dropout="hidden_dropout"
    ),
    "Mamba, Nemotron-H": (_attention("mixer", "norm"),),
    "GPT-NeoX": _side_by_side(
        "post_attention_dropout", "post_mlp_dropout", "input_layernorm", norm_beside="post_attention_layernorm"
    ),
    "BERT with cross-attention": (
        _bert_attention("attention", "attention.output.LayerNorm"),
        _bert_attention("crossattention", "crossattention.output.LayerNorm", "cross"),
        _BERT_FFN,
    ),
    "T5's decoder": (_t5_attention(0, "SelfAttention"), _t5_attention(1, "EncDecAttention", "cross"), _t5_ffn(2)),
    "nn.TransformerDecoder": (
        _attention("self_attn", "norm1", "dropout1"),
        _attention("multihead_attn", "norm2", "dropout2", kind="cross"),
        _ffn("linear1", "norm3", "dropout3", "linear2"),
    ),
    "BART's decoder": (_bart_attention("self_attn"), _bart_attention("encoder_attn", "cross"), _BART_FFN),
}
ENCODERS = {
    "BEiT": (
        _attention("attention", "layernorm_before", inside=_O_PROJ, dropout="drop_path", scale="lambda_1"),
        _ffn("mlp", "layernorm_after", inner="mlp.fc2", dropout="drop_path", scale="lambda_2"),
    ),
    "ViT": (
        _attention("attention", "layernorm_before", inside=_O_PROJ, dropout="dropout"),
        _ffn("mlp", "layernorm_after", inner="mlp.fc2", dropout="dropout"),
    ),
    "timm's ViT": (
        _attention("attn", "norm1", "drop_path1", inner="attn.proj"),
        _ffn("mlp", "norm2", "drop_path2", "mlp.fc2"),
    ),
    "torchvision's ViT": (_attention("self_attention", "ln_1", "dropout"), _ffn("mlp", "ln_2", inner="mlp.3")),
    "CLIP": (_attention("self_attn", "layer_norm1", inside=_OUT_PROJ), _ffn("mlp", "layer_norm2", inner="mlp.fc2")),
    "DINOv2": (
        _attention("attention", "norm1", "layer_scale1", _O_PROJ, dropout="drop_path"),
        _ffn("mlp.fc1", "norm2", "layer_scale2", "mlp.fc2", dropout="drop_path"),
    ),
    "DINOv3": (
        _attention("attention", "norm1", "layer_scale1", _O_PROJ, dropout="drop_path"),
        _ffn("mlp", "norm2", "layer_scale2", "mlp.down_proj", dropout="drop_path"),
    ),
    "wav2vec 2.0": (
        _attention("attention", "layer_norm", "dropout", _OUT_PROJ),
        _ffn("feed_forward", "final_layer_norm", inner="feed_forward.output_dense"),
    ),
    # the first layer's norm of attention is none
    "ModernBERT": (_attention("attn", "attn_norm"), _ffn("mlp", "mlp_norm", inner="mlp.Wo")),
    "BERT": (_bert_attention("attention", "attention.output.LayerNorm"), _BERT_FFN),
    "MPNet": (_attention("attention.attn", "attention.LayerNorm", "attention.dropout", "q k v o"), _BERT_FFN),
    "ESM": (
        _bert_attention("attention", "attention.LayerNorm"),
        _ffn("intermediate", "LayerNorm", "output.dropout", "output.dense"),
    ),
    "GTE": (
        _attention("self_attn", "post_attention_layernorm", "post_attention_dropout", _O_PROJ),
        _ffn("mlp", "post_mlp_layernorm", "post_mlp_dropout", "mlp.down_proj"),
    ),
    "DistilBERT": (
        _attention("attention", "sa_layer_norm", inside="q_lin k_lin v_lin out_lin"),
        _ffn("ffn", "output_layer_norm", inner="ffn.lin2"),
    ),
    "AIMv2": (_attention("attention", "rms_norm1", inside=_OUT_PROJ), _ffn("ffn", "rms_norm2", inner="ffn.down_proj")),
    "T5's encoder": (_t5_attention(0, "SelfAttention"), _t5_ffn(1)),
    "nn.TransformerEncoder": (
        _attention("self_attn", "norm1", "dropout1"),
        _ffn("linear1", "norm2", "dropout2", "linear2"),
    ),
    "BART's encoder": (_bart_attention("self_attn"), _BART_FFN),
}
LAYOUTS: dict[str, tuple[SubLayerNames, ...]] = {**DECODERS, **ENCODERS}
"""Sub-layers by the models that have them; more particular ones first."""
TOP_NORMS = (
    *("norm", "ln_f", "layernorm", "final_layernorm", "final_layer_norm", "final_norm", "layer_norm"),
    *("embedding_norm", "emb_layer_norm_after", "norm_f", "rms_norm", "ln", "ln_post", "ln_final"),
)
"""Names of a norm above the layers."""
UNCALLED = nn.ModuleList, nn.ModuleDict
"""What holds modules, and is never called as a whole."""
LISTS = *UNCALLED, nn.Sequential


def find_blocks(model: nn.Module) -> list[Blocks]:
    """Return the layers of a model: of one stack, or of an encoder and a decoder, in that order; or none that is known.

    Whether norms follow the sum is not told by names: ``post_norm`` is False in all of them.

    Raises:
        UserError: there are several that are no pair.
    """
    return one_stack_or_pair(model, list(_candidates(model)))


def one_stack_or_pair(model: nn.Module, found: list[Blocks]) -> list[Blocks]:
    """Return the layers that were found.

    Raises:
        UserError: there are several that are no encoder and decoder.
    """
    if len(found) > 1 and [blocks.crosses for blocks in found] != [False, True]:
        raise UserError(
            f"{type(model).__name__} has layers in several places, {', '.join(b.layers for b in found)}: rewire the"
            " module that holds those you mean"
        )
    return found


def unknown_layers(model: nn.Module) -> UserError:
    """Return what to say where there are no layers of a known structure."""
    lists = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, LISTS) and any(next(part.children(), None) for part in module.children())
    }
    # layers are mostly of one class
    path = max(lists, key=lambda path: (len({*map(type, lists[path].children())}) == 1, len(lists[path])), default="")
    layer = next(lists[path].children()) if lists else nn.Module()
    if isinstance(layer, UNCALLED):
        return UserError(
            f"{type(model).__name__} runs the sub-layers in {path} itself, and there is no module for a layer: put"
            f" wrap(variant, {path}, ...) into the place of its loop"
        )
    parts = [name for name, _ in layer.named_children()]
    there = f": {path} has layers of {', '.join(parts)}" if parts else ""
    return UserError(
        f"{type(model).__name__} has no layers of a structure that is known{there}; describe them by"
        f" blocks=Blocks(layers={path or '...'!r}, sublayers=(SubLayerNames(...), ...))"
    )


def _candidates(model: nn.Module) -> Iterator[Blocks]:
    for path, module in model.named_modules():
        if not isinstance(module, LISTS):
            continue
        found = [_layout(layer) for layer in module.children()]
        names = list(dict.fromkeys(name for name in found if name is not None))
        if not found or None in found:
            continue
        parent, _, _ = path.rpartition(".")
        above = parent.rpartition(".")[0]
        owners = {owner: dict(model.get_submodule(owner).named_children()) for owner in (parent, above)}
        norms = (f"{owner}.{name}" for owner in owners for name in TOP_NORMS if name in owners[owner])
        sublayers, *others = (LAYOUTS[name] for name in names)
        stack: Literal["encoder", "decoder"] = "decoder" if names[0] in DECODERS else "encoder"
        yield Blocks(path, sublayers, next(norms, "").lstrip("."), stack=stack, others=tuple(others))


def _layout(layer: nn.Module) -> str | None:
    """Return the name of the first structure whose modules a layer has."""
    modules = dict(layer.named_modules())
    return next((name for name, sublayers in LAYOUTS.items() if _fits(sublayers, layer, modules)), None)


def _fits(sublayers: Sequence[SubLayerNames], layer: nn.Module, modules: Mapping[str, nn.Module]) -> bool:
    wanted = {name for sub in sublayers for name in sub.needs if name}
    attributes = {name for sub in sublayers for name in (sub.scale, sub.dropout) if name}
    if any(sub.beside for sub in sublayers) and not getattr(layer, "use_parallel_residual", True):
        return False
    if not wanted <= modules.keys() or any(isinstance(modules[name], UNCALLED) for name in wanted):
        return False
    return all(hasattr(layer, name) for name in attributes)


def _shown(sub: SubLayerNames, modules: Mapping[str, nn.Module]) -> SubLayerNames:
    """Leave out the projections that a layer does not have, such as one of three, or that are no linear maps."""

    def shown(name: str) -> str:
        module = modules.get(name)
        return name if hasattr(module, "in_features") or hasattr(module, "weight") else ""

    query, key, value, inner = map(shown, (sub.query, sub.key, sub.value, sub.inner))
    return replace(sub, query=query, key=key, value=value, inner=inner)
