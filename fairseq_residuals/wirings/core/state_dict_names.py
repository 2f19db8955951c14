"""Checkpoints carry fairseq's names wherever fairseq has one; modules carry ours. The translation, both ways.

===========================================  ====================================
module                                       state dict
===========================================  ====================================
``layers.3.self_attn_connection.norm``       ``layers.3.self_attn_layer_norm``
``layers.3.encoder_attn_connection.norm``    ``layers.3.encoder_attn_layer_norm``
``layers.3.ffn_connection.norm``             ``layers.3.final_layer_norm``
``layers.wiring.norm``                       ``layer_norm``
``layers.3.self_attn_connection.attn_norm``  ``layers.3.attn_ln``
``layers.3.self_attn_connection.head_gain``  ``layers.3.c_attn``
``layers.3.ffn_connection.inner_norm``       ``layers.3.ffn_layernorm``
``layers.3.ffn_connection.residual_gain``    ``layers.3.w_resid``
``layers.3.self_attn_connection.out_norm``   ``layers.3.self_attn_out_layer_norm`` (and so of the others)
===========================================  ====================================

(In the speech encoder ``layers`` is ``transformer_layers``.) Everything else is called the same in both.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.layer import CONNECTIONS, FAIRSEQ_NORMS
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.utils.documents import parse_json

METADATA = "fairseq_residuals"
"""Key of a checkpoint's settings in the header of a file of safetensors."""
_OURS = {f"{CONNECTIONS[kind]}.norm": norm for kind, norm in FAIRSEQ_NORMS.items()} | {
    f"{CONNECTIONS['self']}.attn_norm": "attn_ln",
    f"{CONNECTIONS['self']}.head_gain": "c_attn",
    f"{CONNECTIONS['ffn']}.inner_norm": "ffn_layernorm",
    f"{CONNECTIONS['ffn']}.residual_gain": "w_resid",
    **{f"{CONNECTIONS[kind]}.out_norm": norm.replace("layer", "out_layer") for kind, norm in FAIRSEQ_NORMS.items()},
}
_THEIRS = {theirs: ours for ours, theirs in _OURS.items()}
_OUR_PLACE = re.compile(rf"\b(\d+)\.({'|'.join(map(re.escape, _OURS))})(?=\.|$)")
_THEIR_PLACE = re.compile(rf"^(\d+)\.({'|'.join(_THEIRS)})(?=\.|$)")
_TOP_NORM = re.compile(r"\b(?:transformer_)?layers\.wiring\.norm\.")
_DEAD_COPY = re.compile(r"^\d+\.(?:in_proj|out_proj|fc1|fc2)_(?:weight|bias)$")
"""The second copy of a layer's weights in every encoder layer of stock fairseq 0.12.2."""


def fairseq_name(name: str) -> str:
    """Return a parameter's name in a state dict, from its name in ``model.named_parameters()``."""
    name = _OUR_PLACE.sub(lambda m: f"{m[1]}.{_OURS[m[2]]}", name)
    return _TOP_NORM.sub("layer_norm.", name)


def stack_names(state: Mapping[str, Tensor], prefix: str, layers: str) -> dict[str, str]:
    """Return by fairseq's names the names in a stack, of what a state dict holds for it.

    Args:
        prefix: beginning of the names of the encoder or decoder, such as ``decoder.``.
        layers: the attribute of that which is the stack.
    """
    stack, top = f"{prefix}{layers}.", f"{prefix}layer_norm."
    names = {}
    for key in state:
        if key.startswith(top):
            names[key] = f"wiring.norm.{key[len(top) :]}"
        elif key.startswith(stack) and not _DEAD_COPY.match(name := key[len(stack) :]):
            names[key] = _THEIR_PLACE.sub(lambda m: f"{m[1]}.{_THEIRS[m[2]]}", name)
    return names


def load_fairseq_weights(stack: Stack, checkpoint: Path | str | Mapping[str, Any], prefix: str = "decoder.") -> None:
    """Load into ``stack`` the weights of the same wiring that fairseq trained.

    Args:
        stack: one of the checkpoint's sizes and options.
        checkpoint: a file of safetensors, as ``fairseq-residuals average`` writes it; a whole checkpoint that was read;
            or what one holds as "model", which does not say how it was wired.
        prefix: ``encoder.`` or ``decoder.``.

    Raises:
        UserError: the file cannot be read; the checkpoint names another wiring, number of heads or activation; a
            parameter is missing, or left over, or of another shape.
    """
    state, settings = _open(checkpoint)
    side = "decoder" if prefix.startswith("decoder") else "encoder"
    _check_wiring(stack, settings, side)
    layers = "transformer_layers" if any(key.startswith(f"{prefix}transformer_layers.") for key in state) else "layers"
    names = stack_names(state, prefix, layers)
    if not names:
        raise UserError(f"there is no parameter of a layer that begins with {prefix}{layers}.")
    given, own = {name: state[key] for key, name in names.items()}, stack.state_dict()
    misfits = sorted(name for name in own.keys() | given.keys() if _shape(own, name) != _shape(given, name))
    if misfits:
        name = misfits[0]
        raise UserError(
            f"these weights are of another stack: {fairseq_name(name)} is {_shape(given, name)} in them and"
            f" {_shape(own, name)} in the stack, and {len(misfits) - 1} more differ; build the stack of the wiring,"
            " the sizes and the options that were trained"
        )
    _check_layers(stack, settings, side)
    stack.load_state_dict(given)


def _open(checkpoint: Path | str | Mapping[str, Any]) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Return the parameters by name, and the model's settings as far as the checkpoint has them."""
    if isinstance(checkpoint, Path | str):
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(checkpoint, "pt") as file:
                record = parse_json((file.metadata() or {}).get(METADATA, "{}"))
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        except (OSError, SafetensorError, ValueError) as error:
            raise UserError(f"{checkpoint} cannot be read as safetensors: {error}") from error
        shared, settings = (record.get(key, {}) if isinstance(record, dict) else None for key in ("shared", "settings"))
        if (
            not isinstance(shared, dict)
            or not isinstance(settings, dict)
            or {*map(str, shared.values())} - state.keys()
        ):
            raise UserError(f"{checkpoint} has damaged settings: write it again by `fairseq-residuals average`")
        return state | {name: state[original] for name, original in shared.items()}, settings
    if "model" not in checkpoint:
        return checkpoint, {}
    settings = (checkpoint.get("cfg") or {}).get("model") or checkpoint.get("args") or {}
    return checkpoint["model"], vars(settings) if isinstance(settings, Namespace) else settings


def _check_wiring(stack: Stack, settings: Mapping[str, Any], side: str) -> None:
    """Compare what the settings of a checkpoint choose with what the stack computes; stock fairseq's choose nothing."""
    key = "decoder_residual" if side == "decoder" and settings.get("decoder_residual") else "residual"
    if not settings.get(key):
        return
    trained = Wiring.parse(str(settings[key]), str(settings.get(f"{key}_args") or "")).computes
    if trained != (own := Wiring.of_stack(stack).computes):
        raise UserError(f"these weights were trained with the wiring {trained}, and the stack has {own}")


def _check_layers(stack: Stack, settings: Mapping[str, Any], side: str) -> None:
    """Compare what neither names nor shapes of parameters tell: the number of heads, and the activation of the FFNs."""
    heads = settings.get(f"{side}_attention_heads")
    if heads not in (None, stack.shape.heads):
        raise UserError(f"these weights were trained with {heads} heads, and the stack has {stack.shape.heads}")
    name, x = settings.get("activation_fn"), torch.linspace(-3, 3, 8)
    if name not in ("relu", "gelu", "silu", "tanh"):  # which PyTorch has by fairseq's names
        return
    own = filter(None, (getattr(layer, "activation_fn", None) for layer in stack.modules()))
    if not all(torch.allclose(activation(x.clone()), getattr(functional, name)(x)) for activation in own):
        raise UserError(f"these weights were trained with the activation {name}, and the stack has not ffn={name!r}")


def _shape(state: Mapping[str, Tensor], name: str) -> str:
    return f"of shape {tuple(state[name].shape)}" if name in state else "missing"
