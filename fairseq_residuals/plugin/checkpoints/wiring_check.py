"""A checkpoint's parameters compute what they were trained to compute, whoever loads them, whatever is set."""

from __future__ import annotations

from fairseq_residuals.plugin.checkpoints.fairseq_config import (
    COMPUTING,
    Settings,
    computed_otherwise,
    flat_settings,
    wiring_of,
    wiring_of_any,
)
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.fixes.checkpoint_loading import Loaded, steps


def refuse_to_compute_otherwise(loaded: Loaded) -> None:
    """Refuse other settings than a checkpoint's own with which its parameters compute something else.

    The names and shapes of parameters often do not tell one wiring from another. Paths, dropout and all else that is no
    part of the wiring may be given; what contradicts the norms of a wiring is refused where the model is built.

    Raises:
        UserError: the wiring, whether this plugin builds the model at all, or one of :data:`COMPUTING` would differ
            from the checkpoint's.
    """
    if loaded.own is None:
        return
    before, after = flat_settings(loaded.own), flat_settings(loaded.state)
    compared = [(_computes(before), _computes(after))]
    changed = [key for key in COMPUTING if before.get(key) != after.get(key)]
    compared += [(f"{key}={before.get(key)}", f"{key}={after.get(key)}") for key in changed]
    for then, now in compared:
        if then != now:
            raise UserError(
                f"{loaded.filename} was trained with {then}, and --model-overrides cannot change that to {now};"
                " leave it as it is"
            )


def _computes(settings: Settings) -> str:
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


steps.extend((refuse_to_compute_otherwise, refuse_to_go_on_otherwise))
