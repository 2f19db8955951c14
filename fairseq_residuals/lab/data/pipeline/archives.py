"""What is in an archive, read front to back; nothing is ever written outside of the folder that is named."""

from __future__ import annotations

import bz2
import errno
import fnmatch
import gzip
import io
import lzma
import posixpath
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.free_space import check_space

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DAMAGE = (
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    # a method of compression that zipfile does not have; a header with numbers that are none
    NotImplementedError,
    ValueError,
)
TIMES = 100
"""How much larger than itself an archive may become; text becomes about 4 times larger."""
ALWAYS = 64 << 20
"""Bytes that the smallest archive may become."""


class Member(NamedTuple):
    """A regular file of an archive."""

    name: str
    size: int
    """In bytes, as the archive says it is."""
    contents: IO[bytes]


Files = Iterator[Member]


@contextmanager
def reading(archive: Path) -> Iterator[Files]:
    """Each regular file in a tar (also gzipped) or zip archive, to be read before the next.

    Links and devices are passed over. Iterated to its end, the archive is read to its end, checksums included.

    Raises:
        UserError: the archive is truncated or damaged, encrypted, of another kind, names a file outside of itself, or
            unpacks to more than :data:`TIMES` its size.
    """
    with _refusing_damage(archive):
        yield _walk(archive)


@contextmanager
def decompressed(file: Path) -> Iterator[IO[bytes]]:
    """Open the contents of a single file that is compressed by xz, bzip2 or gzip, as its name says.

    Raises:
        UserError: as `reading`.
    """
    kinds: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".bz2": bz2.open, ".gz": gzip.open}
    with _refusing_damage(file), kinds[file.suffix](file) as unpacked:
        yield io.BufferedReader(_Bounded(file, cast(IO[bytes], unpacked)), 1 << 20)


@contextmanager
def _refusing_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*DAMAGE, OSError) as error:
        # bzip2 tells of damage by an OSError without a number, a seek to a place before the file by EINVAL
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise UserError(f"{archive} is truncated or damaged ({error}): remove it and get it again") from error


class _Bounded(io.RawIOBase):
    """What a file unpacks to, as far as an archive of its size may become."""

    def __init__(self, archive: Path, unpacked: IO[bytes]) -> None:
        super().__init__()
        self._archive, self._unpacked, self._left = archive, unpacked, _bound(archive)

    def read(self, size: int = -1) -> bytes:
        block = self._unpacked.read(self._left + 1 if size < 0 else min(size, self._left + 1))
        self._left -= len(block)
        if self._left < 0:
            raise _too_large(self._archive)
        return block

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        block = self.read(len(view))
        view[: len(block)] = block
        return len(block)


def _bound(archive: Path) -> int:
    return max(ALWAYS, TIMES * archive.stat().st_size)


def _too_large(archive: Path) -> UserError:
    return UserError(f"{archive} unpacks to more than {_bound(archive):,} bytes, which no corpus does: it is not used")


def has_its_end(archive: Path) -> bool:
    """Return whether the file is an archive that is whole by its own account.

    gzip ends with a checksum, zip with its directory. Others have nothing at their end that tells.
    """
    try:
        with archive.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            if start.startswith(b"PK"):
                return zipfile.is_zipfile(file)
            if start.startswith(b"\x1f\x8b"):
                with gzip.open(file) as unzipped:
                    while unzipped.read(1 << 20):
                        pass
                return True
    except DAMAGE:
        pass
    return False


def _walk(archive: Path) -> Files:
    with archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK"):
            yield from _walk_zip(archive, file)
        elif start.startswith(b"\x1f\x8b"):
            with gzip.open(file) as unzipped:
                bounded = cast(IO[bytes], _Bounded(archive, cast(IO[bytes], unzipped)))
                yield from _walk_tar(archive, bounded)
                while bounded.read(1 << 20):  # the checksum comes last
                    pass
        else:
            yield from _walk_tar(archive, file)


def _walk_tar(archive: Path, file: IO[bytes]) -> Files:
    left = _bound(archive)
    with tarfile.open(fileobj=file, mode="r|", errorlevel=2) as tar:
        for member in tar:
            name = _inside(archive, member.name)
            contents = tar.extractfile(member) if member.isreg() else None
            if contents is not None:
                left -= member.size  # a sparse file's is larger than what the archive has of it
                if left < 0:
                    raise _too_large(archive)
                yield Member(name, member.size, contents)


def _walk_zip(archive: Path, file: IO[bytes]) -> Files:
    with zipfile.ZipFile(file) as pack:
        # a member that has more than it says is cut off where it says, and its checksum tells
        if sum(info.file_size for info in pack.infolist()) > _bound(archive):
            raise _too_large(archive)
        for info in pack.infolist():
            if not info.filename:
                raise zipfile.BadZipFile("a file without a name")
            name = _inside(archive, info.filename)
            if info.flag_bits & 1:
                raise UserError(f"{archive} is encrypted: get the archive that needs no password")
            is_link = (info.external_attr >> 16) & 0o170000 == 0o120000
            if not info.is_dir() and not is_link:
                with pack.open(info) as contents:
                    yield Member(name, info.file_size, contents)


def _inside(archive: Path, name: str) -> str:
    normal = posixpath.normpath(name.replace("\\", "/"))
    if normal.startswith(("/", "../")) or normal == ".." or normal[1:2] == ":":
        raise UserError(f"{archive} names the file {name!r}, outside of the folder it is unpacked to: it is not used")
    return normal


def unpack(archive: Path, target: Path, wanted: Sequence[str]) -> None:
    """Write the wanted files of an archive to ``target``, under the names that ``wanted`` gives them.

    A name is that of a file in the archive, whatever the folders above it (``training/x.en`` and ``x.en`` both name
    ``training/x.en``); with a ``*`` it is a pattern for whole names, of any number of files. A file that the
    archive has only with ``.gz`` after its name is unzipped. The archive is read to its end in any case.

    Raises:
        UserError: what `reading` raises; a wanted file is missing or there twice, or larger than what is left of the
            disk, which is asked before it is written.
    """
    found: dict[str, int] = dict.fromkeys(wanted, 0)
    with reading(archive) as files:
        for member in files:
            for want in wanted:
                zipped = member.name.endswith(".gz") and not want.endswith(".gz")
                path = _place(member.name.removesuffix(".gz") if zipped else member.name, want)
                if path is None:
                    continue
                found[want] += 1
                if found[want] > 1 and "*" not in want:
                    raise UserError(f"{archive} has several files {want}")
                _store(archive, member, target / path, zipped)
                break
    missing = [name for name, count in found.items() if count == 0]
    if missing:
        raise UserError(f"{archive} lacks {', '.join(missing)}")


def _place(name: str, want: str) -> str | None:
    """Return where the file ``name`` of an archive goes if it is wanted as ``want``, else None."""
    if "*" in want:
        return name if fnmatch.fnmatchcase(name, want) else None
    return want if f"/{name}".endswith(f"/{want}") else None


def _store(archive: Path, member: Member, path: Path, zipped: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_space(archive, member.size, path.parent)
        out = path.open("wb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise UserError(f"{archive} has {path.name} as a file and as a folder: it is not used") from None
    with out:
        if zipped:
            with gzip.open(member.contents) as unzipped:
                shutil.copyfileobj(_Bounded(archive, cast(IO[bytes], unzipped)), out, 1 << 20)
        else:
            shutil.copyfileobj(member.contents, out, 1 << 20)
