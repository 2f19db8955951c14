"""A run that has reached its end trains nothing more when it is started again."""

import math
import types
from typing import Any

from modern_fairseq.proxies import override, replaces

PATIENCE = "patience"
"""Key of a checkpoint's extra state: the best validation (best), and how many after it were no better (num_runs)."""


class _Finished(Exception):
    """Reason why there is nothing left to train."""


def train_no_further(module: types.ModuleType) -> None:
    """End a run that is over where it is resumed, before it trains or writes anything.

    fairseq asks whether a run is over after each update only (fairseq_cli/train.py:370-423), so each new start of a
    finished run added one. What --patience has counted (:217) was forgotten: it goes into the checkpoint now.
    Can go when fairseq > 0.12.2 asks before the first update, and saves the count.
    """
    load, stopping = module.checkpoint_utils.load_checkpoint, module.should_stop_early

    def load_checkpoint(cfg: Any, trainer: Any, **kwargs: Any) -> tuple[Any, Any]:
        vars(module.checkpoint_utils.save_checkpoint).pop("best", None)  # of a run before it in hydra's -m
        extra_state, epoch_itr = load(cfg, trainer, **kwargs)
        save = trainer.save_checkpoint
        trainer.save_checkpoint = lambda filename, extra: save(filename, extra | {PATIENCE: dict(vars(stopping))})
        vars(stopping).clear()
        # without updates only parameters were taken over, for a new run
        if extra_state is not None and trainer.get_num_updates() > 0:
            if not cfg.reset_meters:  # which begins the search for the best validation anew (checkpoint_utils.py:257)
                vars(stopping).update(extra_state.get(PATIENCE, {}))
            if reason := _reason(trainer, epoch_itr, vars(stopping).get("num_runs", 0)):
                raise _Finished(reason)
        return extra_state, epoch_itr

    @replaces(module, "main")
    def main(original: Any, cfg: Any) -> None:
        try:
            original(cfg)
        except _Finished as finished:
            module.logger.info(f"this run is finished, so nothing is trained and nothing written: {finished}")

    override(module, "checkpoint_utils", load_checkpoint=load_checkpoint)


def _reason(trainer: Any, epoch_itr: Any, validations_in_vain: int) -> str:
    """Return which of the limits of training is reached; empty if none is. The same in all processes of a run."""
    limits, checkpoint = trainer.cfg.optimization, trainer.cfg.checkpoint
    updates, hours, lr = trainer.get_num_updates(), trainer._previous_training_time / 3600, trainer.get_lr()
    if updates >= (limits.max_update or math.inf):
        return f"it has {updates} updates (--max-update {limits.max_update})"
    if epoch_itr.next_epoch_idx > (limits.max_epoch or math.inf):
        return f"it has {epoch_itr.next_epoch_idx - 1} epochs (--max-epoch {limits.max_epoch})"
    if hours > limits.stop_time_hours > 0:
        return f"it took {hours:.2f} hours (--stop-time-hours {limits.stop_time_hours:g})"
    if lr <= limits.stop_min_lr:
        return f"its learning rate is {lr:g} (--stop-min-lr {limits.stop_min_lr:g})"
    if validations_in_vain >= checkpoint.patience > 0:
        return f"its last {validations_in_vain} validations were no better (--patience {checkpoint.patience})"
    return ""
