"""Small and read-only disks: a tmpfs in a mount namespace of this process, which ends with it."""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _PRIVATE, _RECURSIVE = 1, 32, 1 << 18, 1 << 14

Result = TypeVar("Result")


def in_child(work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns in a child of this process, whose mounts end with it.

    Raises:
        RuntimeError: it raised something; the message is its text.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        answer: tuple[str, Any]
        try:
            answer = ("", work())
        except BaseException as error:
            answer = (f"{type(error).__name__}: {error}", None)
        with os.fdopen(writer, "wb") as out:
            pickle.dump(answer, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        failure, result = pickle.load(pipe)
    os.waitpid(pid, 0)
    if failure:
        raise RuntimeError(failure)
    return result  # type: ignore[no-any-return]


def _call(name: str, *args: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def mount(folder: Path, size: int) -> None:
    """Mount an empty disk of ``size`` bytes, which only this process and its children see.

    Raises:
        OSError: this system lets this user mount none.
    """
    user, group = os.getuid(), os.getgid()
    _call("unshare", _NEW_NAMESPACE if user == 0 else _NEW_NAMESPACE | _NEW_USER)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _call("mount", b"none", b"/", None, _PRIVATE | _RECURSIVE, None)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode())


def remount(folder: Path, size: int, read_only: bool = False) -> None:
    """Change the size of a disk that :func:`mount` has mounted, or forbid to write on it.

    Raises:
        OSError: the system refuses.
    """
    flags = _REMOUNT | (_READ_ONLY if read_only else 0)
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode())


def reason_against(folder: Path) -> str:
    """Return why no disk can be mounted here; empty where one can."""
    try:
        in_child(lambda: mount(folder, 1 << 20))
    except RuntimeError as error:
        return str(error)
    return ""
