"""A checkpoint of this plugin as the settings and parameters of a model that needs PyTorch alone."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from torch import Tensor, nn

from fairseq_residuals.plugin.checkpoints.checkpoint_file import read_checkpoint
from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings, complete, flat_settings, load_model
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import dictionary_sizes, sharing
from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS, translate
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found
from fairseq_residuals.plugin.models.builder import wirings_of
from fairseq_residuals.plugin.models.fixnorm import length, uses_fixnorm
from fairseq_residuals.plugin.models.language_model import LANGUAGE_MODEL
from fairseq_residuals.plugin.models.speech_to_text import SPEECH
from fairseq_residuals.plugin.models.translation import TRANSLATION
from fairseq_residuals.wirings.blocks.feed_forward import ACTIVATIONS
from fairseq_residuals.wirings.blocks.models import TransformerModel
from fairseq_residuals.wirings.blocks.settings import ModelSettings, StackSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.wiring import Wiring

REFUSED = {
    "adaptive_input": "an adaptive input, whose embeddings have several widths",
    "adaptive_softmax_cutoff": "an adaptive softmax, which has no logits of all words",
    "no_cross_attention": "a decoder without cross-attention",
    "character_embeddings": "embeddings of characters",
    "add_bos_token": "texts that begin with <s>, where the folder's begin with </s>",
}
"""Settings that no format but fairseq's can hold, and what they make."""
VECTORS_OF_WORDS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight")


@dataclass(frozen=True)
class PortableCheckpoint:
    """A checkpoint that was read.

    Attributes:
        path: where it was read.
        fairseq_model: in evaluation mode, as fairseq builds it.
        model: the same on PyTorch alone, with the same parameters.
        settings: all of fairseq's.
    """

    path: Path
    fairseq_model: nn.Module
    model: TransformerModel
    settings: Settings


def read_own(path: Path) -> tuple[Found, str]:
    """Read a checkpoint of one of this plugin's models; return what it holds, and fairseq's name of the model.

    Raises:
        UserError: the file is damaged or not this plugin's.
    """
    checkpoint = read_checkpoint(path)
    settings = flat_settings(checkpoint)
    model = ARCH_MODEL_NAME_REGISTRY.get(settings.get("arch") or "")
    if model not in (TRANSLATION.model, LANGUAGE_MODEL.model, SPEECH.model):
        raise UserError(
            f"{path} is of architecture {settings.get('arch')!r}, which is none of this plugin's;"
            " what is exported has to be a checkpoint of one of them"
        )
    return Found(str(path), settings, translate(checkpoint["model"], AUTHORS["fairseq"])), model


def read_portable(path: Path) -> PortableCheckpoint:
    """Read a checkpoint of one of this plugin's models of text.

    Raises:
        UserError: as :func:`read_own`, or the model has parts that only fairseq has.
    """
    parameters, kind = read_own(path)
    settings = parameters.settings
    if kind == SPEECH.model:
        raise UserError(
            f"{path} cannot be exported: its input is speech, and the filter banks and their normalization, which come"
            " before the model, belong to fairseq's data and not to the checkpoint; --to fairseq can have it"
        )
    for key, what in REFUSED.items():
        if settings.get(key):
            raise UserError(f"{path} cannot be exported: it has {what} (--{key.replace('_', '-')})")
    sizes = dictionary_sizes(parameters)
    args, _ = complete(settings["arch"], settings, sharing(parameters))
    model = load_model(args, sizes, parameters.parameters, str(path))
    return portable_of(path, args, model, settings)


def portable_of(path: Path, args: Namespace, fairseq_model: nn.Module, settings: Settings) -> PortableCheckpoint:
    """Copy a model that fairseq has built to PyTorch alone.

    Args:
        path: where it was read, for messages.
        args: its settings, complete.
        fairseq_model: in evaluation mode.
        settings: of its checkpoint.

    Raises:
        UserError: the model has parts that only fairseq has.
    """
    wirings = wirings_of(args)
    portable = TransformerModel(_settings(path, args, wirings, fairseq_model))
    # the same names, since the modules are the same; those of a state dict would be fairseq's
    weights: dict[str, Tensor] = dict(fairseq_model.named_parameters(remove_duplicate=False))
    if uses_fixnorm(wirings):
        weights |= {name: weights[name] / length(weights[name]) for name in VECTORS_OF_WORDS if name in weights}
    portable.load_state_dict(weights, strict=True)
    return PortableCheckpoint(path, fairseq_model, portable.eval(), settings)


def _settings(path: Path, args: Namespace, wirings: dict[str, Wiring], model: Any) -> ModelSettings:
    stacks = {side: _stack(path, side, args, wirings[side], getattr(model, side)) for side in wirings}
    decoder, encoder = model.decoder, getattr(model, "encoder", None)
    words = decoder.embed_tokens.weight
    return ModelSettings(
        encoder=stacks.get("encoder"),
        decoder=stacks["decoder"],
        output_dim=decoder.output_projection.weight.shape[1],
        share_input_output=decoder.output_projection.weight is words,
        share_all=encoder is not None and encoder.embed_tokens.weight is words,
    )


def _stack(path: Path, side: str, args: Namespace, wiring: Wiring, owner: Any) -> StackSettings:
    activation = args.activation_fn.replace("gelu_fast", "gelu_accurate")
    if activation not in ACTIVATIONS:
        raise UserError(
            f"{path} cannot be exported: its activation is {args.activation_fn}; those that can be are"
            f" {', '.join(ACTIVATIONS)}"
        )
    layer: Any = owner.layers[0]
    positions, dim = owner.embed_positions, getattr(args, f"{side}_embed_dim")
    learned = positions is not None and isinstance(positions, nn.Embedding)
    scale = 1.0 if args.no_scale_embedding else math.sqrt(dim)
    return StackSettings(
        residual=wiring.name,
        residual_args=wiring.args,
        words=owner.embed_tokens.num_embeddings,
        layers=getattr(args, f"{side}_layers"),
        dim=dim,
        heads=getattr(args, f"{side}_attention_heads"),
        ffn_dim=getattr(args, f"{side}_ffn_embed_dim"),
        activation=activation,
        dropout=layer.dropout_module.p,
        attention_dropout=layer.self_attn.dropout_module.p,
        # a layer without an FFN of fairseq's has none
        activation_dropout=getattr(getattr(layer, "activation_dropout_module", None), "p", 0.0),
        positions="none" if positions is None else "learned" if learned else "sinusoidal",
        max_positions=int(owner.max_positions()),
        embed_scale=scale,
        input_dim=owner.embed_tokens.embedding_dim,
        norm_embedding=getattr(owner, "layernorm_embedding", None) is not None,
    )
