"""The operations by which a process changes the files under a folder: counted, failing, or its last."""

from __future__ import annotations

import _pyio  # type: ignore[import-not-found]  # typeshed has none
import builtins
import io
import mmap
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Act = Callable[[int], None]
"""Is called with the number of each operation, from 1, before it is done; may raise OSError."""

_NAMED = ("open", "replace", "rename", "mkdir", "unlink", "rmdir", "link", "symlink", "truncate")
_OF_DESCRIPTORS = ("fsync", "ftruncate", "write")


class Counter:
    """A number in memory that is shared with all processes that are forked from here on."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    @property
    def value(self) -> int:
        number: int = struct.unpack("q", self._memory[:8])[0]
        return number

    def add_one(self) -> int:
        """Return the number, by then one higher."""
        number = self.value + 1
        self._memory[:8] = struct.pack("q", number)
        return number


def nothing(number: int) -> None:
    """Let the operation be done."""


def kill_at(number: int) -> Act:
    """Return what kills (SIGKILL) the process that is about to do operation ``number``."""

    def act(current: int) -> None:
        if current == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def fail_at(number: int, error: int, for_good: bool) -> Act:
    """Return what fails operation ``number`` with an errno, and where it is ``for_good`` all that follow."""

    def act(current: int) -> None:
        if current == number or (for_good and current > number):
            raise OSError(error, os.strerror(error))

    return act


def watch(folder: Path, counter: Counter, act: Act) -> None:
    """Call ``act`` before each operation of this process, and of its forks, on a file under ``folder``.

    Python's own calls are watched, and files that are opened for writing are written by Python's own implementation of
    them, in pieces of which each is an operation. Nothing undoes this: it is for a process that runs a single command.
    """
    top = f"{folder.resolve()}{os.sep}"

    def is_under(file: Any) -> bool:
        if isinstance(file, int):
            return os.readlink(f"/proc/self/fd/{file}").startswith(top)
        return os.path.abspath(os.fsdecode(file)).startswith(top)

    def watched(function: Callable[..., Any], changes: Callable[..., bool]) -> Callable[..., Any]:
        def call(file: Any, *args: Any, **kwargs: Any) -> Any:
            if changes(*args, **kwargs) and is_under(file):
                act(counter.add_one())
            return function(file, *args, **kwargs)

        return call

    def always(*args: Any, **kwargs: Any) -> bool:
        return True

    def creates(flags: int = 0, *args: Any, **kwargs: Any) -> bool:
        return bool(flags & os.O_CREAT)

    for name in (*_NAMED, *_OF_DESCRIPTORS):
        setattr(os, name, watched(getattr(os, name), creates if name == "open" else always))
    own_open = io.open

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        for_writing = not set(mode).isdisjoint("wax+")
        # Python's implementation opens and writes by the functions of os that are watched
        return (_pyio.open if for_writing and is_under(file) else own_open)(file, mode, *args, **kwargs)

    io.open = builtins.open = open_file  # type: ignore[assignment]
