"""Training that goes on from a checkpoint."""

import functools
import types
from collections.abc import Callable
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.checkpoints import misfit
from modern_fairseq.proxies import override

Reader = Callable[[Any, dict[str, Any], str, bool], None]
"""Gets the trainer, what it has read, the file's name and whether the optimizer's state is left aside; may raise
UserError."""
readers: list[Reader] = []
"""Called before a trainer takes anything over from a checkpoint, on each rank that reads it."""


def read_before_resuming(module: types.ModuleType) -> None:
    """Call :data:`readers`, for which fairseq has no place: trainer.py:481 reads the file and goes on. Can stay as
    long as it has none."""
    original = module.Trainer.load_checkpoint
    from_file = module.checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(original)
    def load_checkpoint(self: Any, filename: str, reset_optimizer: bool = False, *args: Any, **kwargs: Any) -> Any:
        def load_checkpoint_to_cpu(*args: Any, **kwargs: Any) -> dict[str, Any]:
            state = from_file(*args, **kwargs)
            for reader in readers:
                reader(self, state, filename, reset_optimizer)
            return state

        override(module, "checkpoint_utils", load_checkpoint_to_cpu=load_checkpoint_to_cpu)
        try:
            return original(self, filename, reset_optimizer, *args, **kwargs)
        finally:
            override(module, "checkpoint_utils", load_checkpoint_to_cpu=from_file)

    module.Trainer.load_checkpoint = load_checkpoint


def begin_moving_average(trainer: Any, state: dict[str, Any], filename: str, reset_optimizer: bool) -> None:
    """Let ``--store-ema`` begin at the weights of a checkpoint that has no average, as fairseq means to do
    (trainer.py:647-649) with weights that it has deleted by then (:578). Can go when fairseq > 0.12.2 keeps them."""
    if trainer.cfg.ema.store_ema and "model" in state:
        state["extra_state"].setdefault("ema", state["model"])


readers.append(begin_moving_average)


def explain_trainer_misfits(module: types.ModuleType) -> None:
    """Say why a checkpoint cannot be resumed from: trainer.py:579 hides the reason.

    The optimizer state of a checkpoint of stock fairseq 0.12.2 counts the dead parameters of every encoder
    layer (see :mod:`modern_fairseq.layers`) and fits no model without them. Can stay as long as fairseq
    raises "Cannot load model parameters".
    """
    original = module.Trainer.load_checkpoint

    @functools.wraps(original)
    def load_checkpoint(self: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        asked = self.cfg.checkpoint.get("restore_file")
        # unless asked for by name, a run begins where there is none
        if asked == filename and not module.PathManager.isfile(filename):
            raise UserError(f"there is no checkpoint {filename} to go on from")
        try:
            extra_state = original(self, filename, *args, **kwargs)
        except Exception as error:
            if "parameter group that doesn't match" in str(error):
                raise _other_optimizer(filename) from error
            raise misfit(error.__context__, filename) or error from error
        # --fp16 keeps all parameters in one: torch finds no mismatch before the first update
        for parameter, state in getattr(getattr(self._optimizer, "optimizer", None), "state", {}).items():
            if "exp_avg" in state and state["exp_avg"].shape != parameter.shape:
                raise _other_optimizer(filename)
        return extra_state

    module.Trainer.load_checkpoint = load_checkpoint


def _other_optimizer(filename: str) -> UserError:
    return UserError(
        f"{filename} holds the optimizer state of other parameters than the model has (stock fairseq 0.12.2 "
        "kept a second copy of each encoder layer's weights): pass --reset-optimizer to go on from its "
        "weights alone"
    )
