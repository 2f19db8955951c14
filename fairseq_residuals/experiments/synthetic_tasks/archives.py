"""Synthetic text in the files and archives that corpora come in."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def text(lines: Iterable[str]) -> bytes:
    """Return a line each."""
    return "".join(f"{line}\n" for line in lines).encode()


def write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a gzipped tar file; the same files make the same bytes."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
