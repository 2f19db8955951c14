"""Checkpoints: loaded without running code, and named when they do not fit."""

import contextlib
import errno
import functools
import importlib
import os
import pickle
import re
import struct
import types
import warnings
from collections.abc import Callable, Sequence
from typing import IO, Any

import torch

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import override

TRUST = "FAIRSEQ_RESIDUALS_TRUST_CHECKPOINTS"
"""Environment variable; set to 1, checkpoints may hold any class, and loading one can run any code."""

ALLOWED = (
    # models, tasks and criteria that are configured by argparse keep their arguments in it
    "argparse.Namespace",
    # metrics that are arrays, such as the n-gram counts of --eval-bleu; numpy.core as NumPy 1 wrote it
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.dtypes.BoolDType",
    "numpy.dtypes.Int32DType",
    "numpy.dtypes.Int64DType",
    "numpy.dtypes.Float32DType",
    "numpy.dtypes.Float64DType",
    # a configuration that was not turned into plain dicts before it was saved
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.nodes.AnyNode",
    "typing.Any",
    "collections.defaultdict",
    "builtins.dict",
    "builtins.list",
    "builtins.int",
    "builtins.float",
    "builtins.bool",
    "builtins.str",
    # extra_state of fairseq before 0.9, and what its meters are called now
    "fairseq.meters.AverageMeter",
    "fairseq.meters.StopwatchMeter",
    "fairseq.meters.TimeMeter",
    "fairseq.logging.meters.AverageMeter",
    "fairseq.logging.meters.StopwatchMeter",
    "fairseq.logging.meters.TimeMeter",
)
"""What fairseq's own checkpoints hold beside tensors and the plain types that torch allows by itself."""

# What torch raises, depending on where it stumbles, for a file that is cut off or was never a checkpoint.
_PARSE_ERRORS = (
    pickle.UnpicklingError,
    struct.error,
    EOFError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _allowed() -> list[Callable | tuple[Callable, str]]:
    """The objects of :data:`ALLOWED`, each with the name under which files know it."""
    found: list[Callable | tuple[Callable, str]] = []
    for name in ALLOWED:
        module, _, attribute = name.replace("numpy.core", "numpy._core").rpartition(".")
        found.append((getattr(importlib.import_module(module), attribute), name))
    return found


def load(path_or_file: str | os.PathLike | IO[bytes], map_location: Any = None) -> Any:
    """Load what ``torch.save`` wrote, admitting tensors, plain types and the classes of :data:`ALLOWED` only.

    Raises:
        UserError: the file is missing, damaged, or holds another class, which the message names.
    """
    name = _name(path_or_file)
    trusted = os.environ.get(TRUST) == "1"
    context = contextlib.nullcontext() if trusted else torch.serialization.safe_globals(_allowed())
    try:
        with context, warnings.catch_warnings():
            # a plain pickle; what is wrong with it is said below
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path_or_file, map_location=map_location, weights_only=not trusted)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {name}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _damaged(name) from error  # torch sought a place before the start of a short file
    except _PARSE_ERRORS as error:
        if re.search("CUDA|allocate memory", str(error)) or (trusted and not isinstance(error, pickle.UnpicklingError)):
            raise
        refused = re.search(r"GLOBAL (\w[\w.]*\.\w+) ", str(error))
        if refused is None:
            raise _damaged(name) from error
        raise UserError(
            f"{name} holds an object of class {refused[1]}, which is none of those that fairseq checkpoints "
            f"hold, and loading it may run any code: if you trust the file, set {TRUST}=1"
        ) from error


def _name(path_or_file: str | os.PathLike | IO[bytes]) -> str:
    if isinstance(path_or_file, str | os.PathLike):
        return os.fspath(path_or_file)
    return str(getattr(path_or_file, "name", "the file"))


def _damaged(name: str) -> UserError:
    return UserError(f"{name} is damaged (truncated?) or was not written by torch.save")


def load_fairseq(path_or_file: str | os.PathLike | IO[bytes], map_location: Any = None) -> dict[str, Any]:
    """Like :func:`load`, for a file that must be a fairseq checkpoint.

    Raises:
        UserError: as :func:`load` does, or because the file holds something else.
    """
    state = load(path_or_file, map_location)
    if not isinstance(state, dict) or "model" not in state or not ("cfg" in state or "args" in state):
        raise UserError(
            f"{_name(path_or_file)} is not a fairseq checkpoint: it lacks 'model', or both 'cfg' and 'args'"
        )
    return state


def safe_load(module: types.ModuleType) -> None:
    """Replace ``torch.load``, which since torch 2.6 refuses most of fairseq's checkpoints.

    checkpoint_utils.py:315, :878; models/text_to_speech/vocoder.py:191, :220; models/speech_to_text/
    xm_transformer.py:609; data/codedataset.py:346, :348, :380; modules/quantization/pq/em.py:199-205.
    Can go when fairseq > 0.12.2 itself loads with an allow-list.
    """
    override(module, "torch", load=load_fairseq if module.__name__ == "fairseq.checkpoint_utils" else load)


_MISFITS = (
    ("lacks", r"Missing key\(s\) in state_dict: (.*)", r'"([^"]+)"'),
    ("has in excess", r"Unexpected key\(s\) in state_dict: (.*)", r'"([^"]+)"'),
    ("has another shape of", r"(?s)(size mismatch for .*)", r"size mismatch for (\S+):"),
)


def misfit(error: BaseException | None, filename: str) -> UserError | None:
    """The sentence for torch's refusal to load a state dict; None where ``error`` is something else."""
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
