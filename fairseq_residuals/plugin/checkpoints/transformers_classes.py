"""Wirings that transformers has a class for: FSMT, M2M100 and XGLM, which were written for checkpoints of fairseq.

=========  ==================  ================================================================================
class      wiring              what it has besides
=========  ==================  ================================================================================
FSMT       Post-LN, a pair     sinusoidal positions, two dictionaries
M2M100     Pre-LN, a pair      sinusoidal positions, one size of dictionary, a norm on top of both stacks
XGLM       Pre-LN, a decoder   sinusoidal positions, a norm on top
=========  ==================  ================================================================================

All three have one width, numbers of heads by stack, no norm on the embeddings and no projection of them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fairseq_residuals.wirings.blocks.embedding import sinusoids
from fairseq_residuals.wirings.blocks.settings import EOS, PAD, ModelSettings, StackSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_pytorch_tanh", "silu": "silu", "tanh": "tanh"}
"""transformers' names of activations, by fairseq's."""
TOKENS = {"bos_token_id": 0, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": EOS}

Reason = str


@dataclass(frozen=True)
class TransformersClass:
    """A class of transformers that has one of our wirings.

    Attributes:
        name: the class.
        model_type: in a configuration.
        wiring: ours.
        pair: whether it has an encoder.
        output: the name of its output matrix.
        tied_to: the name of the embedding that the others are tied to.
    """

    name: str
    model_type: str
    wiring: Literal["post_ln", "pre_ln"]
    pair: bool
    output: str
    tied_to: str


FSMT = TransformersClass(
    "FSMTForConditionalGeneration",
    "fsmt",
    "post_ln",
    True,
    "model.decoder.output_projection.weight",
    "model.decoder.embed_tokens.weight",
)
M2M100 = TransformersClass(
    "M2M100ForConditionalGeneration", "m2m_100", "pre_ln", True, "lm_head.weight", "model.shared.weight"
)
XGLM = TransformersClass("XGLMForCausalLM", "xglm", "pre_ln", False, "lm_head.weight", "model.embed_tokens.weight")
CLASSES = {kind.model_type: kind for kind in (FSMT, M2M100, XGLM)}


def fitting_class(settings: ModelSettings) -> TransformersClass | Reason:
    """Return the class that has all parameters of a model, or why there is none.

    Args:
        settings: of a model whose wirings are ``post_ln`` or ``pre_ln``, with no option but ``final_norm``.
    """
    stacks = [stack for stack in (settings.encoder, settings.decoder) if stack is not None]
    wirings = {stack.wiring.name for stack in stacks}
    pair = settings.encoder is not None
    kind = next((k for k in CLASSES.values() if {k.wiring} == wirings and k.pair == pair), None)
    if kind is None:
        return f"no class of transformers has the wiring {' with '.join(sorted(wirings))}"
    for stack in stacks:
        if reason := _misfit(stack, kind, stacks[0]):
            return f"{kind.name} has no {reason}"
    if settings.output_dim != settings.decoder.dim:
        return f"{kind.name} has no projection below the output matrix"
    return kind


def _misfit(stack: StackSettings, kind: TransformersClass, first: StackSettings) -> Reason:
    wrong = {
        "positions other than sinusoids": stack.positions != "sinusoidal",
        "norm on the embeddings": stack.norm_embedding,
        "projection of the embeddings": stack.input_dim != stack.dim,
        "stacks of different widths": stack.dim != first.dim,
        "dictionaries of different sizes": kind is M2M100 and stack.words != first.words,
        f"activation {stack.activation}": stack.activation not in ACTIVATIONS,
        "Pre-LN without a norm on top": kind.wiring == "pre_ln" and stack.wiring.value("final_norm") is False,
        "other factor on the embeddings than the root of their width, or 1": not (
            stack.embed_scale == 1 or math.isclose(stack.embed_scale, math.sqrt(stack.dim))
        ),
        "stacks whose embeddings are scaled differently": stack.embed_scale != first.embed_scale,
    }
    return next((reason for reason, is_so in wrong.items() if is_so), "")


def longest_sentence(settings: ModelSettings) -> int:
    """Return the longest source or target that a model was trained for."""
    return max(stack.max_positions for stack in (settings.encoder, settings.decoder) if stack is not None)


def config(settings: ModelSettings, kind: TransformersClass) -> dict[str, Any]:
    """Return the configuration of a model that fits."""
    decoder, encoder = settings.decoder, settings.encoder
    common = {
        "architectures": [kind.name],
        "model_type": kind.model_type,
        "d_model": decoder.dim,
        "activation_function": ACTIVATIONS[decoder.activation],
        "max_position_embeddings": longest_sentence(settings),
        "scale_embedding": decoder.embed_scale != 1,
        "is_encoder_decoder": kind.pair,
        "dtype": "float32",
        **TOKENS,
    }
    if encoder is None:
        return common | {
            "vocab_size": decoder.words,
            "num_layers": decoder.layers,
            "attention_heads": decoder.heads,
            "ffn_dim": decoder.ffn_dim,
            "tie_word_embeddings": settings.share_input_output,
            "bos_token_id": EOS,
        }
    sizes = {
        f"{side}_{name}": value
        for side, stack in (("encoder", encoder), ("decoder", decoder))
        for name, value in (("layers", stack.layers), ("attention_heads", stack.heads), ("ffn_dim", stack.ffn_dim))
    }
    words = {"src_vocab_size": encoder.words, "tgt_vocab_size": decoder.words, "langs": ["src", "tgt"]}
    return (
        common
        | sizes
        | (words if kind is FSMT else {"vocab_size": decoder.words})
        | {"tie_word_embeddings": settings.share_all and settings.share_input_output}
    )


def to_transformers(
    parameters: dict[str, Tensor], settings: ModelSettings, kind: TransformersClass
) -> dict[str, Tensor]:
    """Rename parameters, from the names of our modules."""
    renamed = {_renamed(fairseq_name(name), kind): value for name, value in parameters.items()}
    if kind is FSMT:
        # it would compute them itself, with a warning that they were missing
        rows = torch.arange(longest_sentence(settings) + PAD + 1)
        for side in ("encoder", "decoder"):
            renamed[f"model.{side}.embed_positions.weight"] = sinusoids(rows[None], settings.decoder.dim)[0].clone()
    if kind is M2M100:
        # what both embeddings are called where they are one
        renamed["model.shared.weight"] = renamed["model.decoder.embed_tokens.weight"]
    return renamed


def _renamed(name: str, kind: TransformersClass) -> str:
    if name == "decoder.output_projection.weight":
        return kind.output
    return f"model.{name}" if kind.pair else f"model.{name.removeprefix('decoder.')}"


def from_transformers(tensors: dict[str, Tensor], kind: TransformersClass) -> dict[str, Tensor]:
    """Rename parameters to those of a checkpoint of fairseq; matrices that are tied may be missing.

    Raises:
        UserError: a name is none of the class's.
    """
    parameters = {}
    for name, value in tensors.items():
        if re.search(r"\.embed_positions\.weights?$", name) or name == "model.shared.weight":
            continue
        known = name == kind.output or name.startswith("model.")
        if not known:
            raise UserError(f"the parameter {name[:80]!r} is none of {kind.name}")
        inner = name.removeprefix("model.")
        inner = inner if kind.pair else f"decoder.{inner}"
        parameters["decoder.output_projection.weight" if name == kind.output else inner] = value
    shared = tensors.get("model.shared.weight")
    words = parameters.get("decoder.embed_tokens.weight", shared)
    if words is None:
        raise UserError(f"the folder has no embedding of {kind.name}")
    parameters.setdefault("decoder.embed_tokens.weight", words)
    parameters.setdefault("decoder.output_projection.weight", words)
    if kind.pair:
        parameters.setdefault("encoder.embed_tokens.weight", words)
    return parameters


def settings_of(config: dict[str, Any], kind: TransformersClass) -> dict[str, Any]:
    """Return the settings of fairseq that a configuration amounts to; sizes of matrices come from the parameters.

    Raises:
        UserError: it has something that our wiring has not.
    """
    for key, only in TOKENS.items():
        if config.get(key, only) != only and (kind.pair or key not in ("bos_token_id", "decoder_start_token_id")):
            raise UserError(f"its {key} is {config[key]!r:.40}, and a dictionary of fairseq has {only} there")
    sides = {"encoder": "encoder_", "decoder": "decoder_"} if kind.pair else {"decoder": ""}
    heads = {f"{side}_attention_heads": config.get(f"{prefix}attention_heads", 16) for side, prefix in sides.items()}
    longest = config.get("max_position_embeddings", 1024)
    theirs = config.get("activation_function", "relu")
    activation = next((name for name, of_transformers in ACTIVATIONS.items() if of_transformers == theirs), None)
    if activation is None:
        raise UserError(f"its activation {theirs!r:.40} is none that fairseq has")
    return {
        "activation_fn": activation,
        "no_scale_embedding": not config.get("scale_embedding", True),
        **heads,
        **({"max_source_positions": longest} if kind.pair else {}),
        "max_target_positions": longest,
    }
