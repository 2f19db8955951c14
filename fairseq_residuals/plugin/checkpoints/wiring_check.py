"""A checkpoint's parameters compute what they were trained to compute, whoever loads them, whatever is set."""

from __future__ import annotations

from typing import Any

from fairseq_residuals.plugin.checkpoints.fairseq_config import (
    COMPUTING,
    computed_otherwise,
    flat_settings,
    wiring_of,
    wiring_of_any,
)
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.fixes.checkpoint_loading import Loaded, steps


def refuse_to_rewire(loaded: Loaded) -> None:
    """Refuse other settings than a checkpoint's own that make another wiring of it.

    The names and shapes of parameters often do not tell one wiring from another. Paths, dropout and all else that is no
    part of the wiring may be given; what contradicts the norms of a wiring is refused where the model is built.

    Raises:
        UserError: the wiring, or whether this plugin builds the model at all, would differ from the checkpoint's.
    """
    if loaded.own is None:
        return
    before, after = (_computes(settings) for settings in (loaded.own, loaded.state))
    if before != after:
        raise UserError(
            f"{loaded.filename} was trained with {before}, and --model-overrides cannot change that to {after}:"
            " leave the wiring and the architecture as they are"
        )


def refuse_to_compute_otherwise(loaded: Loaded) -> None:
    """Refuse other settings than a checkpoint's own with which its parameters compute something else.

    Raises:
        UserError: one of :data:`COMPUTING` would differ from the checkpoint's.
    """
    if loaded.own is None:
        return
    before, after = flat_settings(loaded.own), flat_settings(loaded.state)
    for key in COMPUTING:
        if before.get(key) != after.get(key):
            raise UserError(
                f"{loaded.filename} was trained with {key}={before.get(key)}, and --model-overrides cannot"
                f" change that to {after[key]}: leave {key} as it is"
            )


def _computes(checkpoint: dict[str, Any]) -> str:
    settings = flat_settings(checkpoint)
    if settings.get("arch") not in ARCHITECTURES:
        return "a model that is none of this plugin's"
    return f"the wiring {wiring_of(settings) or 'of its architecture'}"


def refuse_to_go_on_otherwise(loaded: Loaded) -> None:
    """Refuse to train on with parameters that have the names of the model's, but computed something else.

    Raises:
        UserError: they were used by another wiring or by other :data:`COMPUTING` settings, and their optimizer is to
            go on.
    """
    trainer, state = loaded.request.trainer, loaded.state
    if trainer is None or loaded.request.reset_optimizer or "last_optimizer_state" not in state:
        return
    before, after = flat_settings(state), flat_settings({"cfg": trainer.cfg})
    then, now = wiring_of_any(before), wiring_of_any(after)
    if not (then and now) or state["model"].keys() != trainer.get_model().state_dict().keys():
        return
    differing = ("the wiring", then, now) if then != now else computed_otherwise(before, after)
    if differing is not None:
        raise UserError(
            f"{loaded.filename} was trained with {differing[0]} {differing[1]}, and this is {differing[2]}: name the"
            " checkpoint's, or another --save-dir, or go on from its parameters alone by --reset-optimizer"
        )


steps.extend((refuse_to_rewire, refuse_to_compute_otherwise, refuse_to_go_on_otherwise))
