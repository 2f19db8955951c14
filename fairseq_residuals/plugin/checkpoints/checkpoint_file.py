"""Checkpoints as files: fairseq's own format, or safetensors, by the name's ending; and where a command may write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.plugin.checkpoints.fairseq_config import flat_settings
from fairseq_residuals.plugin.checkpoints.safetensors_file import SUFFIX, read_safetensors, write_safetensors
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write
from modern_fairseq.loading.checkpoints import checked, load_fairseq
from modern_fairseq.mistakes import disk_error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the memory of the CPU; nothing in it is executed.

    Raises:
        UserError: the file is missing, damaged or no checkpoint.
    """
    if path.suffix == SUFFIX:
        return checked(read_safetensors(path), str(path))
    return load_fairseq(path, map_location="cpu")


def save(checkpoint: dict[str, Any], path: Path) -> None:
    """Write ``path`` whole or not at all; the same checkpoint gives the same bytes.

    A file of safetensors has the parameters and the settings; what else a checkpoint has is left out.

    Raises:
        UserError: it cannot be written.
    """
    try:
        if path.suffix == SUFFIX:
            settings = {key: value for key, value in flat_settings(checkpoint).items() if value is not None}
            write_safetensors(checkpoint["model"], settings, path)
            return
        # given a name and no file, torch would put the name into the archive
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            torch.save(checkpoint, file)
    except (OSError, RuntimeError) as error:
        reason = disk_error(error) or error
        said = (reason.strerror if isinstance(reason, OSError) else None) or reason
        raise UserError(f"cannot write {path}: {said}") from error


def check_output(output: Path, inputs: Iterable[Path], *, overwrite: bool) -> None:
    """Check that ``output`` can be written.

    Args:
        overwrite: whether it may replace a file that is there already.

    Raises:
        UserError: ``output`` is one of ``inputs``, cannot be a file, or is one already.
    """
    if any(output.exists() and output.samefile(path) for path in inputs if path.exists()):
        raise UserError(f"{output} is one of the checkpoints to be read; choose another name for what is written")
    if not output.parent.is_dir():
        raise UserError(f"there is no folder {output.parent} to write {output.name} to")
    if output.is_dir():
        raise UserError(f"{output} is a folder; give the name of a file to write")
    if output.exists() and not output.is_file():
        raise UserError(f"{output} is a device or a pipe; give the name of a file to write")
    if output.exists() and not overwrite:
        raise UserError(f"{output} is there already; --overwrite replaces it")


def check_new_folder(output: Path) -> None:
    """Refuse a folder that cannot be made.

    Raises:
        UserError: ``output`` is there already, or its parent is not.
    """
    if output.exists():
        raise UserError(f"{output} is there already; name a folder that is new")
    if not output.parent.is_dir():
        raise UserError(f"there is no folder {output.parent} to write {output.name} to")
