"""A model as plain Post-LN or Pre-LN, where its wiring amounts to one of them: what fairseq and transformers have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from fairseq_residuals.plugin.checkpoints.exporting.folding import fold
from fairseq_residuals.plugin.checkpoints.exporting.portable_checkpoint import PortableCheckpoint
from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings
from fairseq_residuals.plugin.checkpoints.importing.model_sizes import sharing
from fairseq_residuals.plugin.checkpoints.importing.wiring_detection import Found
from fairseq_residuals.plugin.checkpoints.transformers_classes import Reason, TransformersClass, fitting_class
from fairseq_residuals.wirings.blocks.models import TransformerModel
from fairseq_residuals.wirings.blocks.settings import StackSettings
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.core.state_dict_names import fairseq_name
from fairseq_residuals.wirings.core.wiring import Wiring

FAIRSEQ_HAS = {"norm_type": "layer", "norm_eps": 0.0, "fixnorm": False, "value_residual": "none", "gpas": "none"}
"""Options of every variant that fairseq's own models leave no choice."""


def fold_model(model: Any, wirings: Mapping[str, Wiring], state: dict[str, Tensor]) -> Settings:
    """Fold the gains of all stacks of a model into its parameters.

    Args:
        model: as fairseq builds it.
        wirings: of its stacks, by "encoder" and "decoder".
        state: its state dict in double precision, which changes.

    Returns:
        The settings of a model of fairseq's own that say the same.

    Raises:
        UserError: a wiring is no Post-LN or Pre-LN up to factors, or has an option that those have not.
    """
    exactly: Settings = {}
    for side, wiring in wirings.items():
        owner = getattr(model, side)
        layers = "layers" if hasattr(owner, "layers") else "transformer_layers"
        stack = getattr(owner, layers)
        if not stack.wiring.export_as:
            raise UserError(
                f"its {side} is wired by {wiring.name} ({'; '.join(wiring.equations)}), where fairseq's own has"
                " x = LN(x + F(x)) in all layers, or x = x + F(LN(x)), up to constant factors"
            )
        for option, only in FAIRSEQ_HAS.items():
            for value in (getattr(part.config, option) for part in wiring.parts):
                if value != only:
                    raise UserError(f"its {side} has {option}={value}, and fairseq's own model has {option}={only}")
        exactly |= _placement(stack, f"{side}.layer_norm.weight" in state)
        exactly |= fold(owner, stack, f"{side}.{layers}", state)
    return exactly


def _placement(stack: Stack, top_norm: bool) -> Settings:
    """Return where a stock model has its norms."""
    side, before = stack.shape.stack, stack.wiring.export_as == "pre_ln"
    if before and not top_norm and side == "encoder":
        raise UserError("its encoder is Pre-LN without a norm on top, where fairseq has one")
    placed: Settings = {f"{side}_normalize_before": before}
    return placed | {"no_decoder_final_norm": before and not top_norm} if side == "decoder" else placed


def form_for_transformers(checkpoint: PortableCheckpoint) -> tuple[PortableCheckpoint, TransformersClass] | Reason:
    """Return the model as a class of transformers holds it, with that class, or why none does.

    Factors on branches and norms are in its matrices then, so that the class computes what the wiring computes.
    """
    settings = checkpoint.model.settings
    stacks = {side: stack for side in ("encoder", "decoder") if (stack := getattr(settings, side)) is not None}
    if not all(part.variant.export_as for stack in stacks.values() for part in stack.wiring.parts):
        wirings = sorted({stack.wiring.name for stack in stacks.values()})
        return f"no class of transformers has the wiring {' with '.join(wirings)}"
    state = {name: value.double() for name, value in checkpoint.fairseq_model.state_dict().items()}
    try:
        changed = fold_model(checkpoint.fairseq_model, {side: s.wiring for side, s in stacks.items()}, state)
    except UserError as error:
        return str(error)
    shared = sharing(Found(str(checkpoint.path), {}, state))
    everything = bool(shared.get("share_all_embeddings"))
    forms: dict[str, Any] = {side: _plain(stack, side, changed) for side, stack in stacks.items()}
    plain = replace(
        settings,
        **forms,
        share_input_output=everything or bool(shared.get("share_decoder_input_output_embed")),
        share_all=everything,
    )
    fit = fitting_class(plain)
    if not isinstance(fit, TransformersClass):
        return fit
    model = TransformerModel(plain)
    model.load_state_dict({name: state[fairseq_name(name)].float() for name in model.state_dict()})
    return PortableCheckpoint(checkpoint.path, checkpoint.fairseq_model, model.eval(), checkpoint.settings), fit


def _plain(stack: StackSettings, side: str, changed: Settings) -> StackSettings:
    before = changed[f"{side}_normalize_before"]
    top_norm = side == "encoder" or not changed.get("no_decoder_final_norm", False)
    wiring = Wiring.parse("pre_ln", f"final_norm={str(top_norm).lower()}") if before else Wiring.parse("post_ln")
    learned = changed.get(f"{side}_learned_pos", stack.positions == "learned")
    positions = "learned" if learned else stack.positions
    return replace(stack, residual=wiring.name, residual_args=wiring.args, positions=positions)
