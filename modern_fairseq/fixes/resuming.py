"""Training that goes on from a checkpoint."""

import functools
import types
from collections.abc import Callable
from typing import Any

from modern_fairseq.proxies import override

Reader = Callable[[Any, dict[str, Any], str, bool], None]
"""Gets the trainer, what it has read, the file's name and whether the optimizer's state is left aside; may raise
UserError."""
readers: list[Reader] = []
"""Called before a trainer takes anything over from a checkpoint, on each rank that reads it."""


def read_before_resuming(module: types.ModuleType) -> None:
    """Call :data:`readers`, for which fairseq has no place: trainer.py:481 reads the file and goes on.

    Can stay as long as it has none.
    """
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
    """Let ``--store-ema`` begin at the weights of a checkpoint that has no average.

    fairseq means to do so (trainer.py:647-649) with weights that it has deleted by then (:578). Can go when fairseq >
    0.12.2 keeps them.
    """
    if trainer.cfg.ema.store_ema and "model" in state:
        state["extra_state"].setdefault("ema", state["model"])


readers.append(begin_moving_average)
