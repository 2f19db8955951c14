"""Checkpoints are written so that a full disk or a killed run never costs one that was there before."""

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals_errors import UserError
from modern_fairseq.atomic_write import NO_LOCKS, atomic_write, is_at, open_own, remove_abandoned
from modern_fairseq.mistakes import disk_error
from modern_fairseq.proxies import replaces

_LOG = logging.getLogger(__name__)

WAITS = (1.0, 4.0)
"""Seconds before each further attempt to write: a disk may be full for a moment."""


def save_atomically(module: types.ModuleType) -> None:
    """Begin each attempt to save with an empty file, and replace the old file by a whole one only.

    checkpoint_utils.py:567-574 goes on in the file where the last attempt broke off, takes it for whole, and renames it
    without syncing. Can go when fairseq > 0.12.2 seeks, truncates and syncs.
    """

    @replaces(module, "torch_persistent_save")
    def torch_persistent_save(original: Any, obj: Any, filename: str, async_write: bool = False) -> None:
        if async_write or not module.PathManager.supports_rename(filename):
            original(obj, filename, async_write)
            return

        def save(temporary: Path) -> None:
            with temporary.open("wb") as file:
                torch.save(obj, file)

        _write(filename, save)

    # what is left to the original goes to remote stores, whose files cannot be begun anew
    module._torch_persistent_save = torch.save  # type: ignore[attr-defined]


def copy_atomically(module: types.ModuleType) -> None:
    """Let a killed run leave the old checkpoint_last.pt or the new one, never half of it.

    checkpoint_utils.py:125 copies onto the old file in place.  Can go when fairseq > 0.12.2 copies beside it.
    """
    manager = module.PathManager

    @replaces(manager, "copy")
    def copy(original: Any, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not overwrite or any(map(manager.path_requires_pathmanager, (src_path, dst_path))):
            return original(src_path, dst_path, overwrite)
        _write(dst_path, functools.partial(shutil.copyfile, src_path))
        return dst_path


def begin_in_a_clean_folder(module: types.ModuleType) -> None:
    """Remove what killed runs left unfinished in ``--save-dir``.

    checkpoint_utils.py:842 looks at the folder when a run begins. Can stay as long as
    :mod:`modern_fairseq.atomic_write` writes the checkpoints.
    """

    @replaces(module, "verify_checkpoint_directory")
    def verify_checkpoint_directory(original: Any, save_dir: str) -> None:
        original(save_dir)
        remove_abandoned(save_dir)


def one_training_in_a_folder(module: types.ModuleType) -> None:
    """Keep a second training out of ``--save-dir``, where it would mix its checkpoints with those of the first.

    fairseq_cli/train.py:71 looks only whether the folder can be written. The lock is the process's own: processes that
    load data do not inherit it, and a killed training leaves the folder free. Can go when fairseq > 0.12.2 locks it.
    """

    @replaces(module, "main")
    def main(original: Any, cfg: Any) -> Any:
        folder = cfg.checkpoint.save_dir
        is_local = not module.checkpoint_utils.PathManager.path_requires_pathmanager(folder)
        if cfg.checkpoint.no_save or not is_local or not module.distributed_utils.is_master(cfg.distributed_training):
            return original(cfg)
        os.makedirs(folder, exist_ok=True)
        path = Path(folder, ".lock")
        with os.fdopen(open_own(path), "r+b") as lock:
            if not _is_ours(lock.fileno()) or not is_at(lock.fileno(), path):
                raise UserError(
                    f"another training writes to {folder}: wait for it to end, or choose another --save-dir"
                )
            try:
                return original(cfg)
            finally:
                with contextlib.suppress(OSError):  # where the disk is not writable any more, it may stay
                    path.unlink()


def _is_ours(descriptor: int) -> bool:
    """Lock a file for this process, and return whether no other has; where the file system has no locks, none has."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _write(path: str, fill: Callable[[Path], object]) -> None:
    """Write ``path`` atomically, with patience.

    Raises:
        UserError: no attempt succeeded; ``path`` is what it was.
    """
    for attempt in range(len(WAITS) + 1):
        try:
            with atomic_write(path) as temporary:
                fill(temporary)
            return
        except (OSError, RuntimeError) as error:
            reason = disk_error(error)
            if reason is None:
                raise
            if attempt == len(WAITS):
                raise UserError(
                    f"{os.path.basename(path)} cannot be written to {os.path.dirname(path) or '.'}: {reason.strerror};"
                    " the checkpoints that were there before are whole, and the same command goes on from the last"
                ) from error
            _LOG.warning(f"{path} cannot be written: {reason.strerror}; trying again in {WAITS[attempt]:g} s")
        time.sleep(WAITS[attempt])
