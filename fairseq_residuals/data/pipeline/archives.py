"""What is in an archive, read front to back; nothing is ever written outside of the folder that is named."""

from __future__ import annotations

import fnmatch
import gzip
import posixpath
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from fairseq_residuals.core.errors import UserError

DAMAGE = (EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile)


Files = Iterator[tuple[str, IO[bytes]]]


@contextmanager
def reading(archive: Path) -> Iterator[Files]:
    """Name and contents of each regular file in a tar (also gzipped) or zip archive, to be read before the next.

    Links and devices are passed over. Iterated to its end, the archive is read to its end, checksums included.

    Raises:
        UserError: the archive is truncated or damaged, is of another kind, or names a file outside of itself.
    """
    try:
        yield _walk(archive)
    except DAMAGE as error:
        raise UserError(f"{archive} is truncated or damaged ({error}): remove it and get it again") from error


def _walk(archive: Path) -> Files:
    with archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK"):
            yield from _walk_zip(archive, file)
        elif start.startswith(b"\x1f\x8b"):
            with gzip.open(file) as unzipped:
                yield from _walk_tar(archive, cast(IO[bytes], unzipped))
                while unzipped.read(1 << 20):  # the checksum comes last
                    pass
        else:
            yield from _walk_tar(archive, file)


def _walk_tar(archive: Path, file: IO[bytes]) -> Files:
    with tarfile.open(fileobj=file, mode="r|", errorlevel=2) as tar:
        for member in tar:
            name = _inside(archive, member.name)
            contents = tar.extractfile(member) if member.isreg() else None
            if contents is not None:
                yield name, contents


def _walk_zip(archive: Path, file: IO[bytes]) -> Files:
    with zipfile.ZipFile(file) as pack:
        for info in pack.infolist():
            name = _inside(archive, info.filename)
            is_link = (info.external_attr >> 16) & 0o170000 == 0o120000
            if not info.is_dir() and not is_link:
                with pack.open(info) as contents:
                    yield name, contents


def _inside(archive: Path, name: str) -> str:
    normal = posixpath.normpath(name.replace("\\", "/"))
    if normal.startswith(("/", "../")) or normal == ".." or normal[1:2] == ":":
        raise UserError(f"{archive} names the file {name!r}, outside of the folder it is unpacked to: it is not used")
    return normal


def unpack(archive: Path, target: Path, wanted: Sequence[str]) -> None:
    """Writes the wanted files of an archive to ``target``, under the names that ``wanted`` gives them.

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
                _store(contents, target / path, zipped)
                break
    missing = [name for name, count in found.items() if count == 0]
    if missing:
        raise UserError(f"{archive} lacks {', '.join(missing)}")


def _place(name: str, want: str) -> str | None:
    """Where the file ``name`` of an archive goes if it is wanted as ``want``, else None."""
    if "*" in want:
        return name if fnmatch.fnmatchcase(name, want) else None
    return want if f"/{name}".endswith(f"/{want}") else None


def _store(contents: IO[bytes], path: Path, zipped: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        if zipped:
            with gzip.open(contents) as unzipped:
                shutil.copyfileobj(unzipped, out, 1 << 20)
        else:
            shutil.copyfileobj(contents, out, 1 << 20)
