"""Checkpoints that do not fit the model, or its optimizer, are named."""

import functools
import re
import types
from collections.abc import Sequence
from typing import Any

from fairseq_residuals_errors import UserError

_MISFITS = (
    ("lacks", r"Missing key\(s\) in state_dict: (.*)", r'"([^"]+)"'),
    ("has in excess", r"Unexpected key\(s\) in state_dict: (.*)", r'"([^"]+)"'),
    ("has another shape of", r"(?s)(size mismatch for .*)", r"size mismatch for (\S+):"),
)


def misfit(error: BaseException | None, filename: str) -> UserError | None:
    """Return the sentence for torch's refusal to load a state dict; None where ``error`` is something else."""
    if isinstance(error, UserError):
        return error
    if not isinstance(error, RuntimeError) or not str(error).startswith("Error(s) in loading state_dict"):
        return None
    reasons = []
    for verb, section, name in _MISFITS:
        found = re.search(section, str(error))
        if found:
            reasons.append(f"{verb} {_some(re.findall(name, found[1]))}")
    return UserError(f"{filename} does not fit the model: it {'; it '.join(reasons)}")


def _some(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def explain_misfits(module: types.ModuleType) -> None:
    """Name the file and the parameters when a checkpoint does not fit (checkpoint_utils.py:393-492).

    Files are handed on one by one, which is what the original does with them too, so that it is known which
    one failed.  Can stay as long as fairseq lets torch's RuntimeError through.
    """
    original = module.load_model_ensemble_and_task

    @functools.wraps(original)
    def load_model_ensemble_and_task(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[Any], Any, Any]:
        ensemble, cfg = [], None
        for filename in filenames:
            try:
                models, cfg, task = original([filename], arg_overrides, task, *args, **kwargs)
            except RuntimeError as error:
                raise misfit(error, filename) or error from error
            ensemble.extend(models)
        return ensemble, cfg, task

    module.load_model_ensemble_and_task = load_model_ensemble_and_task  # type: ignore[attr-defined]


def explain_trainer_misfits(module: types.ModuleType) -> None:
    """Say why a checkpoint cannot be resumed from: trainer.py:579 hides the reason.

    The optimizer state of a checkpoint of stock fairseq 0.12.2 counts the dead parameters of every encoder
    layer (see :mod:`modern_fairseq.fixes.layers`) and fits no model without them. Can stay as long as fairseq
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
