"""Contents of an archive, read front to back; nothing is ever written outside of the folder that is named."""

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
from typing import IO, Any

from fairseq_residuals.wirings.core.errors import UserError

DAMAGE = (
    EOFError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    # of zip: a password is needed; a method of compression that it does not have; a header with numbers that are none
    RuntimeError,
    NotImplementedError,
    ValueError,
    # a name that is a file's and a folder's
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
)
Files = Iterator[tuple[str, IO[bytes]]]
"""Names and contents of regular files; each is read before the next."""


@contextmanager
def reading(archive: Path) -> Iterator[Files]:
    """Yield the regular files of a tar (also gzipped) or zip archive or of a package of Debian.

    Links, devices and sparse files are passed over. Iterated to its end, the archive is read to its end, checksums
    included.

    Raises:
        UserError: the archive is truncated or damaged, encrypted, of another kind, or names a file outside of itself.
    """
    with _refusing_damage(archive), archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK"):
            with zipfile.ZipFile(file) as pack:
                yield _walk_zip(archive, pack)
        elif start == b"!<ar":
            with lzma.open(_data_of(archive, file)) as unzipped:
                yield _walk_tar(archive, unzipped)
        elif start.startswith(b"\x1f\x8b"):
            with gzip.open(file) as unzipped:
                yield _walk_tar(archive, unzipped)
        else:
            yield _walk_tar(archive, file)


@contextmanager
def decompressed(file: Path) -> Iterator[IO[bytes]]:
    """Open the contents of a single file that is compressed by xz or bzip2, as its name says.

    Raises:
        UserError: as `reading`.
    """
    kinds: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".bz2": bz2.open}
    with _refusing_damage(file), kinds[file.suffix](file) as unpacked:
        yield unpacked


@contextmanager
def _refusing_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except (*DAMAGE, OSError) as error:
        # bzip2 and gzip tell of damage by an OSError without a number, a seek to a place before the file by EINVAL
        if isinstance(error, OSError) and not isinstance(error, DAMAGE) and error.errno not in (None, errno.EINVAL):
            raise
        raise UserError(f"{archive} is truncated or damaged ({error}): remove it and get it again") from error


def _data_of(archive: Path, file: IO[bytes]) -> IO[bytes]:
    """Return a package's tar, still compressed; each file of an archive of ``ar`` has a header of 60 bytes."""
    file.seek(8)
    while header := file.read(60):
        name, size = header[:16].decode("latin-1").rstrip(" /"), int(header[48:58])
        if name == "data.tar.xz":
            return io.BytesIO(file.read(size))
        file.seek(size + size % 2, io.SEEK_CUR)
    raise UserError(f"{archive} has no data.tar.xz: it is no package of this release")


def _walk_tar(archive: Path, file: IO[bytes] | gzip.GzipFile) -> Files:
    with tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            name = _inside(archive, member.name)
            contents = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if contents is not None:
                yield name, contents
    while file.read(1 << 20):  # the checksum comes last
        pass


def _walk_zip(archive: Path, pack: zipfile.ZipFile) -> Files:
    for info in pack.infolist():
        name = _inside(archive, info.filename)
        is_link = (info.external_attr >> 16) & 0o170000 == 0o120000
        if not info.is_dir() and not is_link:
            yield name, pack.open(info)


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
        UserError: what `reading` raises; a wanted file is missing or there twice.
    """
    found: dict[str, int] = dict.fromkeys(wanted, 0)
    with reading(archive) as files:
        for name, contents in files:
            for want in wanted:
                zipped = name.endswith(".gz") and not want.endswith(".gz")
                path = _place(name.removesuffix(".gz") if zipped else name, want)
                if path is None:
                    continue
                found[want] += 1
                if found[want] > 1 and "*" not in want:
                    raise UserError(f"{archive} has several files {want}")
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                text = gzip.GzipFile(fileobj=contents) if zipped else contents
                with (target / path).open("wb") as out:
                    shutil.copyfileobj(text, out, 1 << 20)
                break
    missing = [name for name, count in found.items() if count == 0]
    if missing:
        raise UserError(f"{archive} lacks {', '.join(missing)}")


def _place(name: str, want: str) -> str | None:
    """Return where the file ``name`` of an archive goes if it is wanted as ``want``, else None."""
    if "*" in want:
        return name if fnmatch.fnmatchcase(name, want) else None
    return want if f"/{name}".endswith(f"/{want}") else None
