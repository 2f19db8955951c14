"""Archives: what is wanted is unpacked, and what is damaged is refused.

What leaves the folder is in ``tests/hostile/archive_cases.py``, with more that is refused.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from published_layouts import pack

from fairseq_residuals.lab.data.archives import decompressed, unpack
from fairseq_residuals.wirings.core.errors import UserError

FILES = {"top/a.en": b"one\n" * 2000, "top/deep/b.de": b"zwei\n" * 2000, "c.txt": bytes(range(256)) * 100}
KINDS = ("x.tar.gz", "x.tar", "x.zip")


@pytest.mark.parametrize("name", KINDS)
def test_wanted_files_are_unpacked_under_the_names_asked_for(tmp_path: Path, name: str) -> None:
    pack(FILES, tmp_path / name)
    unpack(tmp_path / name, tmp_path / "out", ("a.en", "deep/b.de"))
    assert (tmp_path / "out/a.en").read_bytes() == FILES["top/a.en"]
    assert (tmp_path / "out/deep/b.de").read_bytes() == FILES["top/deep/b.de"]
    assert len(list((tmp_path / "out").rglob("*"))) == 3


def test_patterns_take_whole_names(tmp_path: Path) -> None:
    pack(FILES, tmp_path / "x.tar")
    unpack(tmp_path / "x.tar", tmp_path / "out", ("top/*",))
    assert {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")} == {
        "top/a.en",
        "top/deep/b.de",
    }


def test_zipped_members_are_unzipped(tmp_path: Path) -> None:
    pack({"a.en.gz": gzip.compress(b"text\n"), "b.gz": gzip.compress(b"kept")}, tmp_path / "x.tar")
    unpack(tmp_path / "x.tar", tmp_path / "out", ("a.en", "b.gz"))
    assert (tmp_path / "out/a.en").read_bytes() == b"text\n"
    assert gzip.decompress((tmp_path / "out/b.gz").read_bytes()) == b"kept"


def test_a_changed_byte_behind_all_that_is_wanted_is_noticed(tmp_path: Path) -> None:
    """Within gzip's checksum."""
    pack(FILES, tmp_path / "x.tar.gz")
    contents = bytearray((tmp_path / "x.tar.gz").read_bytes())
    contents[-6] ^= 1
    (tmp_path / "x.tar.gz").write_bytes(contents)
    with pytest.raises(UserError, match="truncated or damaged"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "out", ("a.en",))


def test_missing_and_ambiguous_files_are_named(tmp_path: Path) -> None:
    pack({"a/x.en": b"1", "b/x.en": b"2"}, tmp_path / "x.tar")
    with pytest.raises(UserError, match=r"x\.tar has several files x\.en"):
        unpack(tmp_path / "x.tar", tmp_path / "out", ("x.en",))
    with pytest.raises(UserError, match=r"x\.tar lacks y\.en, z\*"):
        unpack(tmp_path / "x.tar", tmp_path / "out", ("a/x.en", "y.en", "z*"))


METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


@pytest.mark.parametrize("method", METHODS)
def test_a_zip_that_is_damaged_anywhere_is_refused_or_read_right(tmp_path: Path, method: str) -> None:
    text = b"".join(b"line %d\n" % i for i in range(50))
    with zipfile.ZipFile(tmp_path / "x.zip", "w", METHODS[method]) as archive:
        archive.writestr("a.en", text)
    whole = (tmp_path / "x.zip").read_bytes()
    refused = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "x.zip").write_bytes(damaged)
        try:
            unpack(tmp_path / "x.zip", tmp_path / "out", ("a.en",))
        except UserError:
            refused += 1
        else:
            assert (tmp_path / "out/a.en").read_bytes() == text, place
    assert refused > len(whole) // 2


@pytest.mark.parametrize("compress", (lzma, bz2), ids=lambda module: module.__name__)
def test_single_compressed_files_are_read(tmp_path: Path, compress: ModuleType) -> None:
    """What is cut off is refused while it is read."""
    path = tmp_path / f"x.{ {'lzma': 'xz', 'bz2': 'bz2'}[compress.__name__] }"
    contents = random.Random(1).randbytes(100_000)
    path.write_bytes(compress.compress(contents))
    with decompressed(path) as file:
        assert file.read() == contents
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(UserError, match="is truncated or damaged"), decompressed(path) as file:
        file.read()
