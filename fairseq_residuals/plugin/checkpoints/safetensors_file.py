"""Checkpoints as safetensors: parameters in ``NAME.safetensors``, settings beside them in ``NAME.safetensors.json``.

A file of this format cannot hold anything but tensors, so that reading it is safe by construction. What is bounded here
is the time and the memory that a hostile header takes. The two files belong together by a digest of the tensors, which
the settings' file has: a mixed pair, and any flipped bit, is an error.

Parameters alone are kept. The optimizer's state and the place in the training data stay with fairseq's own format.
"""

from __future__ import annotations

import json
import struct
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import read_record
from modern_fairseq.atomic_write import atomic_write
from modern_fairseq.loading import tensor_digest

SUFFIX = ".safetensors"
FORMAT = "fairseq_residuals checkpoint"
VERSION = 1
_MOST_BYTES_OF_HEADER = 16 << 20
"""About 100 for each tensor."""
_MOST_BYTES_OF_SETTINGS = 1 << 20
NO_TRAINING_STATE = {
    "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
    "task_state": {},
    "extra_state": {"train_iterator": {"epoch": 1}},
    "last_optimizer_state": None,
}
"""What fairseq expects of a checkpoint of parameters alone."""


def settings_file(path: Path) -> Path:
    """Return the path of the settings that belong to the parameters at ``path``."""
    return path.with_name(f"{path.name}.json")


def write_safetensors(parameters: Mapping[str, Tensor], settings: Mapping[str, Any], path: Path) -> None:
    """Write parameters and settings, each file whole or not at all.

    Args:
        parameters: by name; those that share memory are written once.
        settings: flat; what JSON cannot hold is an error.
        path: ends in :data:`SUFFIX`.

    Raises:
        UserError: the package safetensors is missing, or a setting is no plain value.
        OSError: a file cannot be written.
    """
    unique, shared = without_copies(parameters)
    record = {
        "format": FORMAT,
        "version": VERSION,
        "digest": tensor_digest.digest(unique),
        "shared": shared,
        "settings": dict(settings),
    }
    try:
        text = json.dumps(record, indent=1, sort_keys=True)
    except TypeError as error:
        raise UserError(f"{path}: the settings beside the parameters must be plain values: {error}") from error
    # the settings first: without them the parameters could not be read
    with atomic_write(settings_file(path)) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    with atomic_write(path) as temporary:
        write_tensors(unique, temporary)


def read_safetensors(path: Path) -> dict[str, Any]:
    """Read parameters and settings as a fairseq checkpoint that has no state of training.

    Raises:
        UserError: a file is missing or damaged, the two do not belong together, or another version wrote them.
        OSError: a file cannot be read.
    """
    beside = settings_file(path)
    for file in (path, beside):
        if not file.is_file():
            raise UserError(
                f"there is no {file}" + (f", the settings of the parameters in {path}" if file == beside else "")
            )
    if beside.stat().st_size > _MOST_BYTES_OF_SETTINGS:
        raise UserError(f"{beside} has more than {_MOST_BYTES_OF_SETTINGS >> 20} MiB, which no settings take")
    record = read_record(beside, "format", "version", "digest", "shared", "settings")
    if record["format"] != FORMAT or record["version"] != VERSION:
        raise UserError(
            f"{beside} is {str(record['format'])[:40]!r} of version {str(record['version'])[:20]}; this program reads"
            f" {FORMAT!r} of version {VERSION}"
        )
    parameters = read_tensors(path)
    if tensor_digest.digest(parameters) != record["digest"]:
        raise UserError(f"{path} and {beside} do not belong together, or one of them is damaged; get both again")
    settings, shared = record["settings"], record["shared"]
    if not isinstance(settings, dict) or not isinstance(shared, dict):
        raise UserError(f"{beside} is damaged: its settings and what is shared must be objects")
    for name, original in shared.items():
        if name in parameters or not isinstance(original, str) or original not in parameters:
            raise UserError(f"{beside} is damaged: {name[:80]!r} shares a tensor that {path} does not have")
    parameters |= {name: parameters[original] for name, original in shared.items()}
    return {"model": parameters, "args": Namespace(**settings), "cfg": None} | NO_TRAINING_STATE


def without_copies(parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, under its first name, and for every other of its names the first."""
    unique: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in parameters.items():
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in first:
            shared[name] = first[place]
        else:
            first[place] = name
            # views into one storage are written as tensors of their own
            unique[name] = tensor.detach().cpu().contiguous().clone()
    return unique, shared


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors that share no memory.

    Raises:
        UserError: the package safetensors is missing.
        OSError: the file cannot be written.
    """
    from_torch = _library()
    # transformers wants to be told who wrote the tensors
    path.write_bytes(from_torch.save(dict(tensors), metadata={"format": "pt"}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file.

    Raises:
        UserError: the file is damaged, or the package safetensors is missing.
        OSError: it cannot be read.
    """
    from_torch = _library()
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        (length,) = struct.unpack("<Q", start) if len(start) == 8 else (size,)
        if length > min(_MOST_BYTES_OF_HEADER, size - 8):
            raise UserError(f"{path} is no safetensors file, or damaged: its header cannot have {length} bytes")
        data = start + file.read()
    try:
        return from_torch.load(data)  # type: ignore[no-any-return]
    except Exception as error:
        # the library has one exception for all that is wrong with a file, which it does not export by a stable name
        if type(error).__name__ != "SafetensorError" and not isinstance(error, KeyError | ValueError):
            raise
        raise UserError(f"{path} is no safetensors file, or damaged: {str(error)[:200]}") from error


def _library() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise UserError("safetensors files need the package safetensors: pip install '.[hf]' in the clone") from error
    return safetensors.torch
