"""Checkpoints as safetensors: one file, with the settings in the metadata of its header.

A file of this format cannot hold anything but tensors and text, so that reading it is safe by construction. What is
bounded here is the time and the memory that a hostile header takes. The settings have a digest of the tensors, so that
any flipped bit of them is an error. Files of earlier versions have their settings beside them, in
``NAME.safetensors.json``, and are read.

Parameters alone are kept. The optimizer's state and the place in the training data stay with fairseq's own format.
"""

from __future__ import annotations

import hashlib
import json
import struct
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.plugin.documents import read_json
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.fairseq_weights import METADATA
from fairseq_residuals.wirings.utils.documents import parse_json
from modern_fairseq.atomic_write import atomic_write

SUFFIX = ".safetensors"
FORMAT = "fairseq_residuals checkpoint"
VERSION = 1
_MOST_BYTES_OF_HEADER = 16 << 20
"""Limit of a header, which has about 100 bytes for each tensor."""
_MOST_BYTES_OF_SETTINGS = 1 << 20
NO_TRAINING_STATE = {
    "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
    "task_state": {},
    "extra_state": {"train_iterator": {"epoch": 1}},
    "last_optimizer_state": None,
}
"""Entries that fairseq expects in a checkpoint of parameters alone."""


def write_safetensors(parameters: Mapping[str, Tensor], settings: Mapping[str, Any], path: Path) -> None:
    """Write parameters and settings as one file, whole or not at all.

    Args:
        parameters: by name; those that share memory are written once.
        settings: flat; what JSON cannot hold is an error.
        path: ends in :data:`SUFFIX`.

    Raises:
        UserError: the package safetensors is missing, or a setting is no plain value.
        OSError: the file cannot be written.
    """
    unique, shared = without_copies(parameters)
    record = {
        "format": FORMAT,
        "version": VERSION,
        "digest": digest(unique),
        "shared": shared,
        "settings": dict(settings),
    }
    try:
        text = json.dumps(record, sort_keys=True)
    except TypeError as error:
        raise UserError(f"{path}: the settings of the parameters must be plain values: {error}") from error
    with atomic_write(path) as temporary:
        # one entry, since the library writes several in any order
        write_tensors(unique, temporary, {METADATA: text})


def read_safetensors(path: Path) -> dict[str, Any]:
    """Read parameters and settings as a fairseq checkpoint that has no state of training.

    Raises:
        UserError: the file is missing or damaged, has no settings, or another version wrote it.
        OSError: it cannot be read.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}")
    parameters = read_tensors(path)
    record = _settings_of(path)
    if not isinstance(record, dict) or any(not isinstance(record.get(key), dict) for key in ("settings", "shared")):
        raise UserError(f"the settings of {path} are damaged: they must be objects")
    if record.get("format") != FORMAT or record.get("version") != VERSION:
        raise UserError(
            f"the settings of {path} are {str(record.get('format'))[:40]!r} of version"
            f" {str(record.get('version'))[:20]}; this program reads {FORMAT!r} of version {VERSION}"
        )
    if digest(parameters) != record.get("digest"):
        raise UserError(f"the settings of {path} do not belong to its tensors, or one of them is damaged; get it again")
    for name, original in record["shared"].items():
        if name in parameters or not isinstance(original, str) or original not in parameters:
            raise UserError(f"{path} is damaged: {name[:80]!r} shares a tensor that it does not have")
    if any(hasattr(Namespace, name) for name in record["settings"]):
        raise UserError(f"{path} is damaged: a setting has the name of a method")
    parameters |= {name: parameters[original] for name, original in record["shared"].items()}
    return {"model": parameters, "args": Namespace(**record["settings"]), "cfg": None} | NO_TRAINING_STATE


def digest(parameters: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and values, whatever their order and layout in memory.

    The format has no checksums.
    """
    total = hashlib.sha256()
    for name, tensor in sorted(parameters.items()):
        total.update(f"/{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _settings_of(path: Path) -> Any:
    """Return what the metadata of a readable file says, or the file beside it that earlier versions wrote."""
    beside = path.with_name(f"{path.name}.json")
    with path.open("rb") as file:
        text = json.loads(file.read(*struct.unpack("<Q", file.read(8)))).get("__metadata__", {}).get(METADATA)
    if text is None and not beside.is_file():
        raise UserError(
            f"{path} has no settings of a checkpoint, and there is no {beside} with them; a model of transformers is"
            " read from its folder by import --from hf"
        )
    if (beside.stat().st_size if text is None else len(text)) > _MOST_BYTES_OF_SETTINGS:
        raise UserError(f"the settings of {path} have more than {_MOST_BYTES_OF_SETTINGS >> 20} MiB, as none have")
    try:
        return read_json(beside) if text is None else parse_json(text)
    except ValueError as error:
        raise UserError(f"the settings of {path} are damaged: {error}") from None


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


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors that share no memory.

    Args:
        metadata: text for the header; without it, what transformers wants to be told.

    Raises:
        UserError: the package safetensors is missing.
        OSError: the file cannot be written.
    """
    from_torch = _library()
    path.write_bytes(from_torch.save(dict(tensors), metadata=dict(metadata or {"format": "pt"})))


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
        raise UserError("this needs the package safetensors: pip install -e '.[hf]' in the clone") from error
    return safetensors.torch
