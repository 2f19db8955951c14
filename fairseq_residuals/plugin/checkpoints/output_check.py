"""Where a command writes, checked before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fairseq_residuals.wirings.core.errors import UserError


def check_output(output: Path, inputs: Iterable[Path]) -> None:
    """Check that ``output`` can be written.

    Raises:
        UserError: ``output`` is one of ``inputs``, or cannot be a file.
    """
    if any(output.exists() and output.samefile(path) for path in inputs if path.exists()):
        raise UserError(f"{output} is one of the checkpoints to be read; choose another name for what is written")
    if not output.parent.is_dir():
        raise UserError(f"there is no folder {output.parent} to write {output.name} to")
    if output.is_dir():
        raise UserError(f"{output} is a folder; give the name of a file to write")
    if output.exists() and not output.is_file():
        raise UserError(f"{output} is a device or a pipe; give the name of a file to write")


def check_new_folder(output: Path) -> None:
    """Refuse a folder that cannot be made.

    Raises:
        UserError: ``output`` is there already, or its parent is not.
    """
    if output.exists():
        raise UserError(f"{output} is there already; name a folder that is new")
    if not output.parent.is_dir():
        raise UserError(f"there is no folder {output.parent} to write {output.name} to")
