"""Checkpoints: loaded without running code, copied atomically, and named when they do not fit."""

import contextlib
import errno
import functools
import os
import pickle
import re
import shutil
import struct
import tarfile
import types
import zipfile
from collections.abc import Sequence
from typing import IO, Any

import torch

from fairseq_residuals_errors import UserError
from modern_fairseq import safe_pickle, safe_zip, tensor_digest
from modern_fairseq.proxies import override
from modern_fairseq.safe_settings import check_settings, check_weight, with_configs
from modern_fairseq.safe_tensors import Storages
from modern_fairseq.untrusted import Foreign, Refused

TRUST = "FAIRSEQ_RESIDUALS_TRUST_CHECKPOINTS"
"""Environment variable; set to 1, checkpoints may hold any class, and loading one can run any code."""

_DAMAGED = "is damaged (truncated?) or was not written by torch.save"
_TOO_LARGE = "does not fit into the memory of this machine"
_MAGIC = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
"""How files of the format before torch 1.6 begin."""

# What torch raises, depending on where it stumbles, for a file that is cut off or was never a checkpoint.
_PARSE_ERRORS = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    struct.error,
    EOFError,
    AssertionError,
    AttributeError,
    LookupError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)


def load(path_or_file: str | os.PathLike | IO[bytes], map_location: Any = None) -> Any:
    """Load what ``torch.save`` wrote, admitting tensors, plain types and the classes of :mod:`safe_objects` only.

    The file calls, allocates and addresses nothing: whatever it names is made by small functions of our own, and its
    checksums, where it has some, are checked first.

    Raises:
        UserError: the file is missing or damaged, or holds another class or anything else that checkpoints do not; the
            message names it.
    """
    name = _name(path_or_file)
    if os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "").lower() in ("1", "y", "yes", "true"):
        raise UserError("unset TORCH_FORCE_WEIGHTS_ONLY_LOAD: the unpickler that reads checkpoints calls even less")
    try:
        with _opened(path_or_file) as file:
            if os.environ.get(TRUST) == "1":
                return _load_trusted(file, name, map_location)
            return _load_restricted(file, map_location)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {name}") from None
    except Foreign as error:
        raise UserError(
            f"{name} holds an object of class {error}, which is none of those that fairseq checkpoints "
            f"hold, and loading it may run any code: if you trust the file, set {TRUST}=1"
        ) from error
    except Refused as error:
        raise UserError(f"{name} {error}") from error


def _opened(path_or_file: str | os.PathLike | IO[bytes]) -> contextlib.AbstractContextManager[IO[bytes]]:
    if isinstance(path_or_file, str | os.PathLike):
        return open(path_or_file, "rb")
    return contextlib.nullcontext(path_or_file)


def _load_trusted(file: IO[bytes], name: str, map_location: Any) -> Any:
    try:
        return torch.load(file, map_location=map_location, weights_only=False)
    except (pickle.UnpicklingError, EOFError) as error:
        raise _damaged(name) from error


def _load_restricted(file: IO[bytes], map_location: Any) -> Any:
    """
    Raises:
        Refused: the file holds what it must not.
        UserError: it is damaged.
    """
    try:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        start = file.read(len(_MAGIC))
        records = safe_zip.check(file, size) if start.startswith(b"PK\x03\x04") else None
        if records is None and (start != _MAGIC or _is_tar(file)):
            raise Refused(_DAMAGED)
        file.seek(0)
        pickles = safe_pickle.module_for(Storages(size, records))
        # not weights_only, which would call NumPy's and torch's own functions with whatever arguments the file has
        state = torch.load(file, map_location=map_location, pickle_module=pickles, weights_only=False, mmap=False)
        check_weight(state, size)
        return with_configs(state, {})
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise Refused(_DAMAGED) from error  # torch sought a place before the start of a short file
    except MemoryError as error:
        raise Refused(_TOO_LARGE) from error
    except _PARSE_ERRORS as error:
        if "CUDA" in str(error):
            raise
        # what a file says of its own size has been checked
        raise Refused(_TOO_LARGE if "allocate memory" in str(error) else _DAMAGED) from error


def _is_tar(file: IO[bytes]) -> bool:
    """Whether torch would unpack the file, as it was written before torch 0.1.10, to a folder."""
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:"):
            return True
    except tarfile.TarError:
        return False


def _name(path_or_file: str | os.PathLike | IO[bytes]) -> str:
    if isinstance(path_or_file, str | os.PathLike):
        return os.fspath(path_or_file)
    return str(getattr(path_or_file, "name", "the file"))


def _damaged(name: str) -> UserError:
    return UserError(f"{name} {_DAMAGED}")


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
    if os.environ.get(TRUST) != "1":
        try:
            check_settings(state.get("cfg"))
            tensor_digest.check(state)
        except Refused as error:
            raise UserError(f"{_name(path_or_file)} {error}") from error
    return state


def safe_load(module: types.ModuleType) -> None:
    """Replace ``torch.load``, which since torch 2.6 refuses most of fairseq's checkpoints.

    checkpoint_utils.py:315, :878; models/text_to_speech/vocoder.py:191, :220; models/speech_to_text/
    xm_transformer.py:609; data/codedataset.py:346, :348, :380; modules/quantization/pq/em.py:199-205.
    Can go when fairseq > 0.12.2 itself loads with an allow-list.
    """
    override(module, "torch", load=load_fairseq if module.__name__ == "fairseq.checkpoint_utils" else load)


def atomic_copy(module: types.ModuleType) -> None:
    """Let a killed run leave the old checkpoint_last.pt or the new one, never half of it.

    checkpoint_utils.py:125 copies onto the old file in place; the same module's torch_persistent_save
    already writes beside the file and renames.  Can go when fairseq > 0.12.2 copies in this way.
    """
    original = module.PathManager

    class PathManager(original):  # type: ignore[valid-type, misc]
        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
            if original.path_requires_pathmanager(dst_path) or original.path_requires_pathmanager(src_path):
                return original.copy(src_path, dst_path, overwrite)
            if not overwrite and os.path.exists(dst_path):
                raise FileExistsError(f"{dst_path} exists already")
            shutil.copyfile(src_path, f"{dst_path}.tmp")
            os.replace(f"{dst_path}.tmp", dst_path)
            return dst_path

    module.PathManager = PathManager  # type: ignore[attr-defined]


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
