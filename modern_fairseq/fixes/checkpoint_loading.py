"""Loading a checkpoint: what was read passes an ordered list of steps before a model or a trainer takes anything over.

fairseq's own functions have no place for this. Each is wrapped once: the one that reads a file, the one that makes an
ensemble of several, and the one by which a trainer goes on.
"""

import contextvars
import copy
import dataclasses
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import replaces


@dataclasses.dataclass(frozen=True)
class Request:
    """Purpose for which a checkpoint is read, where that is known."""

    task: Any = None
    """Settings of the task that an ensemble is to serve."""
    trainer: Any = None
    """Trainer that goes on from it."""
    reset_optimizer: bool = False
    """Whether the state of the optimizer is left aside."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read."""

    filename: str
    state: dict[str, Any]
    own: dict[str, Any] | None
    """Settings (``cfg`` and ``args``) as the file has them, where ``--model-overrides`` or the like gave others."""
    request: Request


Step = Callable[[Loaded], None]
"""Function that looks at a checkpoint, may change its state, and raises UserError where it is not what it should be."""
_request = contextvars.ContextVar("request", default=Request())  # noqa: B039 (it is frozen)
_own: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("own", default=None)
"""Takes up the settings that a file has, where this thread reads it with others."""


def check_what_is_read(module: types.ModuleType) -> None:
    """Take each checkpoint through :data:`steps`, and name the file that does not fit (checkpoint_utils.py:300, :393).

    Files of an ensemble are handed on one by one, as the original does too, so that it is known which one failed. Can
    stay as long as fairseq sets whatever settings it is given, and lets torch's RuntimeError through.
    """

    @replaces(module.torch, "load")  # of the proxy that this module has for torch
    def load(original: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = original(*args, **kwargs)
        if (own := _own.get()) is not None:
            own.update(copy.deepcopy({key: state.get(key) for key in ("cfg", "args")}))
        return state

    @replaces(module, "load_checkpoint_to_cpu")
    def load_checkpoint_to_cpu(
        original: Any, path: str, arg_overrides: Any = None, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        own: dict[str, Any] | None = {} if arg_overrides else None
        token = _own.set(own)
        try:
            state: dict[str, Any] = original(path, arg_overrides, *args, **kwargs)
        finally:
            _own.reset(token)
        for step in steps:
            step(Loaded(path, state, own, _request.get()))
        return state

    @replaces(module, "load_model_ensemble_and_task")
    def load_model_ensemble_and_task(
        original: Any, filenames: Sequence[str], arg_overrides: Any = None, task: Any = None, *args: Any, **kwargs: Any
    ) -> tuple[list[Any], Any, Any]:
        ensemble, cfg = [], None
        asked = getattr(task, "cfg", None) or getattr(task, "args", None)
        token = _request.set(Request(task=asked))
        try:
            for filename in filenames:
                try:
                    models, cfg, task = original([filename], arg_overrides, task, *args, **kwargs)
                except RuntimeError as error:
                    raise misfit(error, filename) or error from error
                ensemble.extend(models)
        finally:
            _request.reset(token)
        return ensemble, cfg, task


def check_what_is_resumed(module: types.ModuleType) -> None:
    """Tell the steps which trainer goes on, and say why it cannot, which trainer.py:579 hides.

    The optimizer state of a checkpoint of stock fairseq 0.12.2 counts the dead parameters of every encoder layer (see
    :mod:`modern_fairseq.fixes.layers`) and fits no model without them. Can stay as long as fairseq raises "Cannot load
    model parameters".
    """

    @replaces(module.Trainer, "load_checkpoint")
    def load_checkpoint(
        original: Any, self: Any, filename: str, reset_optimizer: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        asked = self.cfg.checkpoint.get("restore_file")
        # unless asked for by name, a run begins where there is none
        if asked == filename and not module.PathManager.isfile(filename):
            raise UserError(f"there is no checkpoint {filename} to go on from")
        token = _request.set(Request(trainer=self, reset_optimizer=reset_optimizer))
        try:
            extra_state = original(self, filename, reset_optimizer, *args, **kwargs)
        except Exception as error:
            if "parameter group that doesn't match" in str(error):
                raise _other_optimizer(filename) from error
            raise misfit(error.__context__, filename) or error from error
        finally:
            _request.reset(token)
        # --fp16 keeps all parameters in one: torch finds no mismatch before the first update
        for parameter, state in getattr(getattr(self._optimizer, "optimizer", None), "state", {}).items():
            if "exp_avg" in state and state["exp_avg"].shape != parameter.shape:
                raise _other_optimizer(filename)
        return extra_state


def _other_optimizer(filename: str) -> UserError:
    return UserError(
        f"{filename} holds the optimizer state of other parameters than the model has (stock fairseq 0.12.2 "
        "kept a second copy of each encoder layer's weights): pass --reset-optimizer to go on from its "
        "weights alone"
    )


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


def check_kind(loaded: Loaded) -> None:
    """Refuse a language model for a task of sequence to sequence, which it would serve without the source.

    Raises:
        UserError: it is one, or the other way round.
    """
    trained, asked = _of_task(loaded.state), loaded.request.task
    was, wanted = (_setting(trained, "_name") or _setting(trained, "task"), _setting(asked, "_name"))
    if None not in (was, wanted) and ("language_modeling" in str(was)) != ("language_modeling" in str(wanted)):
        raise UserError(
            f"{loaded.filename} was trained for --task {was}, and cannot serve --task {wanted}; a language model beside"
            " a translation goes to --lm-path"
        )


def check_direction(loaded: Loaded) -> None:
    """Refuse a model of another direction, which translates all the same where the dictionary is joined.

    fairseq-validate takes the checkpoint's task and changes in it what its own flags say. A longer name, such as de_AT
    for de, may be that of a test set with the same dictionary.

    Raises:
        UserError: a side of the task has a name that does not begin with the model's.
    """
    sides, trained = ("source_lang", "target_lang"), _of_task(loaded.own or loaded.state)
    for asked in (loaded.request.task, _of_task(loaded.state)):
        was, wanted = (tuple(_setting(part, side) for side in sides) for part in (trained, asked))
        pairs = zip(wanted, was, strict=True)
        if None not in (*was, *wanted) and not all(str(name).startswith(str(own)) for name, own in pairs):
            raise UserError(
                f"{loaded.filename} translates from {was[0]} to {was[1]}, and not from {wanted[0]} to {wanted[1]}:"
                f" give --source-lang {was[0]} --target-lang {was[1]}"
            )


def check_beginning(loaded: Loaded) -> None:
    """Refuse a language model of texts that begin otherwise than the task's: it would go on from what it never read.

    Raises:
        UserError: one has ``--add-bos-token`` and the other has not.
    """
    was, wanted = (_setting(part, "add_bos_token") for part in (_of_task(loaded.state), loaded.request.task))
    if None not in (was, wanted) and bool(was) != bool(wanted):
        said = "with --add-bos-token: give it here too" if was else "without --add-bos-token: leave it out"
        raise UserError(f"{loaded.filename} was trained {said}")


def _of_task(state: dict[str, Any]) -> Any:
    """Return the settings of the task that a checkpoint was trained for."""
    cfg = state.get("cfg")
    return cfg.get("task") if cfg is not None else state.get("args")


def _setting(settings: Any, key: str) -> Any:
    return settings.get(key) if hasattr(settings, "get") else getattr(settings, key, None)


steps: list[Step] = [check_kind, check_direction, check_beginning]
"""Steps that each checkpoint passes, in this order; a plugin adds its own."""
