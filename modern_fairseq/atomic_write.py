"""Files that are written whole or not at all.

The temporary file lies beside its target, under one fixed name, so what a killed process left is overwritten by the
next writer of the same target and cannot pile up. A lock on it, which the kernel releases when its process dies, keeps
two writers apart and tells a file in use from an abandoned one; a process id in the name could not, for other machines
may share the folder. Where the file system has no locks, files are written without.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".atomic-write"
"""Temporary files are called ``.NAME`` and this; nobody else's are."""

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
_NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP)
"""Error numbers by which file systems answer that cannot lock a file, or sync a folder."""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write ``path`` whole or not at all.

    The block gets the path of an empty temporary file, which it fills, and may check. When the block ends without an
    error, the file is synced to disk and takes the place of ``path``; after an error or Ctrl-C it is gone, and ``path``
    is what it was. Of a symbolic link, its target is written. A second writer of the same path waits.

    Raises:
        OSError: the file cannot be written; names ``path`` where the system names no file, or the temporary one.
        FileExistsError: there is a device or a pipe, in whose place no file is put.
    """
    target = Path(path).resolve()
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise FileExistsError(errno.EEXIST, "It is a device or a pipe, and no file", str(path))
    temporary = target.with_name(f".{target.name}{SUFFIX}")
    try:
        with _locked(temporary):
            try:
                yield temporary
                _sync(temporary)
                os.replace(temporary, target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync(target.parent)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)
            del error.filename2  # set to None, it would be printed as where the file was to go
        raise


def open_own(path: str | os.PathLike[str], flags: int = os.O_CREAT) -> int:
    """Open a file beside a user's files whose name anybody can know; a link that lies there is not followed.

    Raises:
        OSError: the file is a symbolic link, or cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o666)


def remove_abandoned(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files that killed processes left in ``folder``; those in use stay, and all others."""
    for temporary in Path(folder).glob(f".*{SUFFIX}"):
        if temporary.is_symlink():  # nobody's who writes here
            continue
        with contextlib.suppress(FileNotFoundError), os.fdopen(open_own(temporary, 0), "r+b") as file:
            if _lock(file.fileno(), fcntl.LOCK_NB):
                temporary.unlink()


def _lock(descriptor: int, flags: int = 0) -> bool:
    """Return whether the lock was had: not where the file system has none, or, with LOCK_NB, where another holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


@contextlib.contextmanager
def _locked(temporary: Path) -> Iterator[None]:
    """Create the file, or empty the one that a killed process left, and hold its lock."""
    while True:
        descriptor = open_own(temporary)
        locked = False
        try:
            locked = _lock(descriptor)
            # while this process waited, the file may have taken its target's place, or been removed
            if is_at(descriptor, temporary):
                os.ftruncate(descriptor, 0)
                yield
                return
        finally:
            if locked:  # closing alone would leave it locked for as long as a forked process has the descriptor
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _sync(path: Path) -> None:
    """Write a file, or the names in a folder, to disk: no rename may be there before what it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _NO_SYNC):
            raise
    finally:
        os.close(descriptor)
