"""Checkpoints are read without running code."""

import argparse
import contextlib
import errno
import os
import types
from typing import IO, Any

import torch

from fairseq_residuals_errors import UserError
from modern_fairseq.loading.reader import DAMAGED, read
from modern_fairseq.loading.settings import check_settings, harmless_settings
from modern_fairseq.loading.untrusted import Foreign, Refused


def load(path_or_file: str | os.PathLike | IO[bytes], map_location: Any = None) -> Any:
    """Load what ``torch.save`` wrote, admitting tensors, plain types and the classes of :mod:`objects` only.

    The file calls, allocates and addresses nothing: whatever it names is made by small functions of our own, and its
    checksums, where it has some, are checked first.

    Raises:
        UserError: the file is missing or damaged, or holds another class or anything else that checkpoints do not; the
            message names it.
    """
    name = _name(path_or_file)
    try:
        with _opened(path_or_file) as file:
            return read(file, map_location)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {name}") from None
    except Foreign as error:
        raise UserError(
            f"{name} holds an object of class {error}, which is none of those that fairseq checkpoints "
            "hold, and loading it may run any code"
        ) from error
    except Refused as error:
        raise UserError(f"{name} {error}") from error
    except Exception as error:
        # whatever Python raises, depending on where it stumbles, for a file that is cut off or was never a checkpoint
        if "CUDA" in str(error) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise
        # what a file says of its own size has been checked
        too_large = isinstance(error, MemoryError) or "allocate memory" in str(error)
        raise UserError(f"{name} {'does not fit into the memory of this machine' if too_large else DAMAGED}") from error


def _opened(path_or_file: str | os.PathLike | IO[bytes]) -> contextlib.AbstractContextManager[IO[bytes]]:
    if isinstance(path_or_file, str | os.PathLike):
        return open(path_or_file, "rb")
    return contextlib.nullcontext(path_or_file)


def _name(path_or_file: str | os.PathLike | IO[bytes]) -> str:
    if isinstance(path_or_file, str | os.PathLike):
        return os.fspath(path_or_file)
    return str(getattr(path_or_file, "name", "the file"))


_SHAPE: dict[str, type | types.UnionType] = {
    "model": dict,
    "args": argparse.Namespace | dict | None,
    "cfg": dict | argparse.Namespace | None,
    "extra_state": dict | None,
    "optimizer_history": list | None,
    "task_state": dict | None,
}
"""Types of the entries that fairseq and this project look into."""


def load_fairseq(path_or_file: str | os.PathLike | IO[bytes], map_location: Any = None) -> dict[str, Any]:
    """Load a file that must be a fairseq checkpoint.

    Raises:
        UserError: as :func:`load` and :func:`checked` do.
    """
    return checked(load(path_or_file, map_location), _name(path_or_file))


def checked(state: Any, name: str) -> dict[str, Any]:
    """Return a checkpoint that was read, without the settings by which it would open, import or start something.

    Args:
        state: what a file holds.
        name: the file's.

    Raises:
        UserError: it is no fairseq checkpoint, its entries are of other types, or its settings would be computed.
    """
    if not isinstance(state, dict) or "model" not in state or not ("cfg" in state or "args" in state):
        raise UserError(f"{name} is not a fairseq checkpoint: it lacks 'model', or both 'cfg' and 'args'")
    try:
        _check_shape(state)
        for key in ("cfg", "args"):
            check_settings(state.get(key), len(state["model"]))
    except Refused as error:
        raise UserError(f"{name} {error}") from error
    return harmless_settings(state, name)


def _check_shape(state: dict[str, Any]) -> None:
    for key, kind in _SHAPE.items():
        if not isinstance(state.get(key), kind):
            raise Refused(f"is damaged: its {key!r} is of type {type(state.get(key)).__name__}")
    if not all(isinstance(entry, dict) for entry in state.get("optimizer_history") or ()):
        raise Refused("is damaged: its 'optimizer_history' has entries that are no mappings")
    for key, value in state["model"].items():
        if not isinstance(key, str) or not isinstance(value, torch.Tensor):
            raise Refused(f"is damaged: its 'model' must hold tensors by name, not a {type(value).__name__}")
