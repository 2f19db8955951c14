"""Training goes on with the wiring with which it began."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from torch import nn

from fairseq_residuals.plugin.checkpoints.fairseq_config import flat_settings, wiring_of
from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.wirings.core.errors import UserError


@register_extension("resume_check")
class ResumeCheck(Extension):
    """Refuse a checkpoint of another wiring."""

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Look at each checkpoint from which training is about to go on."""
        hooks_of(model).before_resume.append(refuse_another_wiring)


def refuse_another_wiring(trainer: Any, state: dict[str, Any], filename: str, reset_optimizer: bool) -> None:
    """Refuse a checkpoint whose parameters have the names of the model's, but were used by another wiring.

    Raises:
        UserError: it is one, and its optimizer is to go on.
    """
    then, now = wiring_of(flat_settings(state)), wiring_of(flat_settings({"cfg": trainer.cfg}))
    if reset_optimizer or "last_optimizer_state" not in state or not then or not now or then == now:
        return
    if state["model"].keys() == trainer.get_model().state_dict().keys():
        raise UserError(
            f"{filename} was trained with the wiring {then}, and this is {now}: name the checkpoint's, or another"
            " --save-dir, or go on from its parameters alone by --reset-optimizer"
        )
