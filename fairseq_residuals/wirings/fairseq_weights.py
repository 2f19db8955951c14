"""Load into a stack the weights that fairseq trained."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.blocks.feed_forward import activation_named
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name, stack_names
from fairseq_residuals.wirings.core.wiring import Wiring
from fairseq_residuals.wirings.utils.documents import parse_json

METADATA = "fairseq_residuals"
"""Key of a checkpoint's settings in the header of a file of safetensors."""
FORMER = {"gelu_fast": "gelu_accurate", "swish": "silu"}
"""Other names that fairseq has for activations."""
EXTENSIONS = ("residual_bottom_to_top", "scale_attn", "scale_fc", "scale_heads", "scale_resids")
"""Flags of models called ``transformer`` that are wired otherwise than stock ones: the authors' B2T, and NormFormer."""


def load_fairseq_weights(stack: Stack, checkpoint: Path | str | Mapping[str, Any], prefix: str = "decoder.") -> None:
    """Load into ``stack`` the weights of the same wiring that fairseq trained.

    Args:
        stack: one of the checkpoint's sizes and options.
        checkpoint: a file of safetensors, as ``fairseq-residuals average`` writes it; a whole checkpoint that was read;
            or what one holds as "model", which does not say how it was wired.
        prefix: ``encoder.`` or ``decoder.``.

    Raises:
        UserError: the file cannot be read; the checkpoint names another wiring, number of heads or activation; a
            parameter is missing, or left over, or of another shape; ``prefix`` is of another kind of stack.
    """
    state, settings = _open(checkpoint)
    side = "decoder" if prefix.startswith("decoder") else "encoder"
    if side != stack.shape.stack:
        raise UserError(
            f"prefix={prefix!r} is of the {side}, this stack of the {stack.shape.stack}: change prefix or task"
        )
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
    """Compare what the settings of a checkpoint choose with what the stack computes; stock fairseq's are two wirings.

    Settings of other repositories' models do not tell: their flags would have to be known.
    """
    own = Wiring.of_stack(stack)
    key = "decoder_residual" if side == "decoder" and settings.get("decoder_residual") else "residual"
    before = settings.get(f"{side}_normalize_before")
    is_stock = str(settings.get("arch")).startswith("transformer") and not any(map(settings.get, EXTENSIONS))
    if settings.get(key):
        trained = Wiring.parse(str(settings[key]), str(settings.get(f"{key}_args") or ""))
    elif before is None or not is_stock:
        return
    elif before:
        trained = Wiring.parse("pre_ln", {"final_norm": own.value("final_norm") is not False})  # names of weights tell
    else:
        trained = Wiring.parse("post_ln", None)
    if (computes := trained.computes) != own.computes:
        raise UserError(f"these weights were trained with the wiring {computes}, and the stack has {own.computes}")


def _check_layers(stack: Stack, settings: Mapping[str, Any], side: str) -> None:
    """Compare what neither names nor shapes of parameters tell: the number of heads, and the activation of the FFNs."""
    heads = settings.get(f"{side}_attention_heads")
    if heads not in (None, stack.shape.heads):
        raise UserError(f"these weights were trained with {heads} heads, and the stack has {stack.shape.heads}")
    if (given := settings.get("activation_fn")) is None:
        return
    name, x = FORMER.get(given, given), torch.linspace(-3, 3, 8)
    trained = activation_named(name)
    own = filter(None, (getattr(layer, "activation_fn", None) for layer in stack.modules()))
    if not all(torch.allclose(activation(x.clone()), trained(x.clone())) for activation in own):
        raise UserError(f"these weights were trained with the activation {name}, and the stack has not ffn={name!r}")


def _shape(state: Mapping[str, Tensor], name: str) -> str:
    return f"of shape {tuple(state[name].shape)}" if name in state else "missing"
