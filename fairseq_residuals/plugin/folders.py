"""Folders that processes share: one process at work in each, and contents that are complete or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq_residuals_errors import UserError
from modern_fairseq.atomic_write import open_own


@contextmanager
def locked(folder: Path, name: str = ".lock", wait: bool = False) -> Iterator[int]:
    """Keep other processes out of ``folder``, which is made where it is missing, until the block ends.

    The kernel releases the lock when the last process that holds it ends. A child process that is given the descriptor
    holds it too, so a killed parent does not leave a folder free in which its children still write.

    Args:
        name: the file in ``folder`` that is locked. It stays: removing it could let two processes in.
        wait: wait for another process to leave, instead of raising.

    Returns:
        The lock's file descriptor.

    Raises:
        UserError: another process is at work there, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(open_own(folder / name), "r+b")
    except OSError as error:
        raise UserError(f"nothing can be written in {folder}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is at work in {folder}: wait for it to end, or choose another folder"
            ) from None
        yield lock.fileno()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Make ``folder`` whole or not at all.

    The block fills the empty folder ``NAME.partial`` that it gets. When it ends without an error, the contents are
    written to disk and take the place of ``folder``; after an error they are gone. What an interrupted process left is
    removed first.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
    except Exception as error:
        shutil.rmtree(partial)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:  # such as a full disk
            error.filename = str(partial)
        raise
    flush_to_disk(partial)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


def flush_to_disk(folder: Path) -> None:
    """Write all files to disk, so that a power failure cannot leave a renamed folder without its contents."""
    for path in (folder, *folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
