"""Training goes on with the wiring with which it began."""

from __future__ import annotations

from typing import Any

from fairseq_residuals.checkpoints.fairseq_config import flat_settings, wiring_of
from fairseq_residuals.core.errors import UserError
from modern_fairseq.resuming import readers


def refuse_another_wiring(trainer: Any, state: dict[str, Any], filename: str, reset_optimizer: bool) -> None:
    """
    Raises:
        UserError: the checkpoint's parameters have the names of the model's, but another wiring used them, and its
            optimizer is to go on.
    """
    then, now = wiring_of(flat_settings(state)), wiring_of(flat_settings({"cfg": trainer.cfg}))
    if reset_optimizer or "last_optimizer_state" not in state or not then or not now or then == now:
        return
    if state["model"].keys() == trainer.get_model().state_dict().keys():
        raise UserError(
            f"{filename} was trained with the wiring {then}, and this is {now}: name the checkpoint's, or another"
            " --save-dir, or go on from its parameters alone by --reset-optimizer"
        )


readers.append(refuse_another_wiring)
