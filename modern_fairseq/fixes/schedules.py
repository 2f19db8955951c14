"""Schedules of the learning rate go on from a checkpoint exactly where they were."""

import types
from typing import Any

from modern_fairseq.proxies import replaces

_BAD_EPOCHS = "num_bad_epochs"


def save_patience(module: types.ModuleType) -> None:
    """Save how long ``reduce_lr_on_plateau`` has waited for a better validation (reduce_lr_on_plateau.py:107-118).

    A resumed run counted from 0 again. Checkpoints without the count load as ever. Can go when fairseq > 0.12.2
    saves it.
    """
    schedule = module.ReduceLROnPlateauLRSchedule

    @replaces(schedule, "state_dict")
    def state_dict(original: Any, self: Any) -> dict[str, Any]:
        return {**original(self), _BAD_EPOCHS: self.lr_scheduler.num_bad_epochs}

    @replaces(schedule, "load_state_dict")
    def load_state_dict(original: Any, self: Any, state: dict[str, Any]) -> None:
        original(self, state)
        self.lr_scheduler.num_bad_epochs = state.get(_BAD_EPOCHS, 0)


def step_after_last_validation(module: types.ModuleType) -> None:
    """Tell the schedule the validation that ended an epoch, where training goes on from that epoch's checkpoint.

    fairseq saves before the schedule learns of it (fairseq_cli/train.py:200-205), and forgets it on resuming
    (checkpoint_utils.py:250). Can go when fairseq > 0.12.2 saves after it.
    """

    @replaces(module, "load_checkpoint")
    def load_checkpoint(original: Any, cfg: Any, trainer: Any, **kwargs: Any) -> tuple[Any, Any]:
        extra_state, epoch_itr = original(cfg, trainer, **kwargs)
        if extra_state is None or cfg.reset_optimizer or cfg.reset_lr_scheduler or trainer.get_num_updates() == 0:
            return extra_state, epoch_itr
        position, validation = extra_state["train_iterator"], extra_state.get("val_loss")
        if position.get("version", 1) >= 2 and position["iterations_in_epoch"] == 0 and validation is not None:
            ended = position["epoch"] - 1
            trainer.lr_step(ended)  # the epoch is what the schedule counts from
            trainer.lr_step(ended, validation)
        return extra_state, epoch_itr
