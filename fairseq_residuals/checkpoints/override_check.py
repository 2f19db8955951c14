"""A checkpoint's parameters are used in the wiring that they were trained in, whatever a user gives in its place."""

from __future__ import annotations

from typing import Any

from fairseq_residuals.checkpoints.fairseq_config import flat_settings, wiring_of
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.models.architectures import ARCHITECTURES
from modern_fairseq.fixes.overrides import checks


def refuse_to_rewire(own: dict[str, Any], used: dict[str, Any], filename: str) -> None:
    """Refuse other settings than a checkpoint's own that make another wiring of it.

    The names and shapes of parameters often do not tell one wiring from another. Paths, dropout and all else that is no
    part of the wiring may be given; what contradicts the norms of a wiring is refused where the model is built.

    Raises:
        UserError: the wiring, or whether this plugin builds the model at all, would differ from the checkpoint's.
    """
    before, after = (_computes(settings) for settings in (own, used))
    if before != after:
        raise UserError(
            f"{filename} was trained with {before}, which other settings (--model-overrides) cannot change to {after}:"
            " leave the wiring and the architecture as they are"
        )


def _computes(checkpoint: dict[str, Any]) -> str:
    settings = flat_settings(checkpoint)
    if settings.get("arch") not in ARCHITECTURES:
        return "a model that is none of this plugin's"
    return f"the wiring {wiring_of(settings) or 'of its architecture'}"


checks.append(refuse_to_rewire)
