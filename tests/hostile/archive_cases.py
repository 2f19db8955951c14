"""Containers: zip and tar, as checkpoints and as downloads."""

from __future__ import annotations

import gzip
import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator

from object_cases import pid, rebuilt
from pickle_cases import DAMAGED, MAGIC, Case, checkpoint, legacy, zipped

FOREIGN = "compressed, encrypted, or named"
NUMBERS = bytes(range(64)) * 64
GOOD = zipped(checkpoint(rebuilt(pid("0", 1024), 0, (1024,), (1,))), {"data/0": NUMBERS})
OLD = legacy(checkpoint(rebuilt(pid("0", 1024, view=b"N"), 0, (1024,), (1,))), {"0": NUMBERS})


def zip_of(*files: tuple[str, bytes], method: int = zipfile.ZIP_STORED, link: bool = False) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for file, contents in files:
            info = zipfile.ZipInfo(file)
            info.compress_type = method
            if link:
                info.create_system, info.external_attr = 3, 0o120777 << 16
            archive.writestr(info, contents)
    return out.getvalue()


def changed(contents: bytes, place: int, new: bytes) -> bytes:
    return contents[:place] + new + contents[place + len(new) :]


def checkpoints() -> Iterator[Case]:
    """Archives that are not as torch.save writes them."""
    records = (("x/data.pkl", checkpoint(b"}")), ("x/version", b"3\n"))
    tensor = GOOD.index(NUMBERS)
    central = GOOD.rindex(b"PK\x01\x02")
    encrypted = changed(GOOD, central + 8, b"\x01")
    overlapping = changed(GOOD, central + 42, struct.pack("<I", 0))
    end = len(GOOD) - 22
    cases = {
        "zip-compressed": (zip_of(*records, method=zipfile.ZIP_DEFLATED), FOREIGN),
        "zip-bomb": (zip_of(*records, ("x/data/0", bytes(1 << 26)), method=zipfile.ZIP_DEFLATED), FOREIGN),
        "zip-lzma": (zip_of(*records, method=zipfile.ZIP_LZMA), FOREIGN),
        "zip-escape": (zip_of(*records, ("x/../../y", b"")), FOREIGN),
        "zip-absolute": (zip_of(*records, ("/etc/passwd", b"")), FOREIGN),
        "zip-backslash": (zip_of(*records, ("x\\y", b"")), FOREIGN),
        "zip-two-folders": (zip_of(*records, ("y/data.pkl", b"")), FOREIGN),
        "zip-two-of-one-name": (_twice(), "two records of one name"),
        "zip-two-cases": (zip_of(*records, ("x/DATA.PKL", b"")), "two records of one name"),
        "zip-torchscript": (zip_of(*records, ("x/constants.pkl", b"")), "a program .TorchScript"),
        "zip-without-pickle": (zip_of(("x/version", b"3\n")), r"without data\.pkl"),
        "zip-without-records": (zip_of(), DAMAGED),
        "zip-encrypted": (encrypted, FOREIGN),
        "zip-overlapping": (overlapping, "overlap|damaged"),
        "zip-comment": (GOOD[:-2] + b"\x05\x00hello", DAMAGED),
        "zip-trailing": (GOOD + bytes(100), DAMAGED),
        "zip-long-table": (changed(GOOD, end + 12, struct.pack("<I", 1 << 30)), "damaged|not written"),
        "zip-table-elsewhere": (changed(GOOD, end + 16, struct.pack("<I", 1 << 30)), "damaged|not written"),
        "zip-flipped-tensor": (changed(GOOD, tensor + 100, b"\xff"), "checksum differs"),
        "zip-flipped-pickle": (changed(GOOD, GOOD.index(b"rebuild"), b"R"), "checksum differs"),
        "zip-of-zeros": (b"PK\x03\x04" + bytes(5000), DAMAGED),
        "byteorder": (zip_of(*records, ("x/byteorder", b"middle")), DAMAGED),
        "alignment": (
            zip_of(*records, ("x/.storage_alignment", b"9" * 5000)),
            "torch.save does not write",
        ),
        "tar": (tar_of(("storages", b""), ("tensors", b""), ("pickle", b"")), DAMAGED),
        "tar-named-as-a-checkpoint": (_tar_of_magic(), DAMAGED),
        "tar-of-10^9-tensors": (tar_of(("storages", b"\x80\x02J\x00\xca\x9a;.")), DAMAGED),
        "pickle-alone": (checkpoint(b"}"), DAMAGED),
        "pickle-of-protocol-5": (b"\x80\x05\x95" + bytes(8) + b"}.", DAMAGED),
        "gzip": (gzip.compress(GOOD, mtime=0), DAMAGED),
        "page": (b"<!doctype html><title>404</title>", DAMAGED),
        "empty": (b"", DAMAGED),
        "zeros": (bytes(10_000), DAMAGED),
        "noise": (random.Random(1).randbytes(10_000), DAMAGED),
        "legacy-header-alone": (MAGIC, DAMAGED),
    }
    for label, (contents, sentence) in cases.items():
        yield Case(label, "checkpoint", contents, sentence)
    for part in (1, 10, 50, 90, 99):
        for label, contents in {"zip": GOOD, "legacy": OLD}.items():
            yield Case(
                f"{label}-cut-at-{part}", "checkpoint", contents[: len(contents) * part // 100], "damaged|cut|fill"
            )


def _twice() -> bytes:
    contents = zip_of(("x/data.pkl", checkpoint(b"}")), ("x/data.pkm", checkpoint(b"}")))
    return contents.replace(b"data.pkm", b"data.pkl")


def tar_of(*files: tuple[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda info: None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for file, contents in files:
            info = tarfile.TarInfo(file)
            info.size = len(contents)
            change(info)
            archive.addfile(info, io.BytesIO(contents))
    return out.getvalue()


def _tar_of_magic() -> bytes:
    """A tar archive whose first 14 bytes, its first file's name, are those of a checkpoint before torch 1.6."""
    header = bytearray(tar_of(("n", b"")))
    start = MAGIC[:14]
    header[:14] = start
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header[:512]):06o}\0 ".encode()
    return bytes(header)


def downloads() -> Iterator[Case]:
    """Archives that prepare is given; `wanted.txt` is wanted."""
    wanted = ("wanted.txt", b"text\n")

    def kind(value: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
        def change(info: tarfile.TarInfo) -> None:
            info.type, info.linkname, info.size = value, target, 0

        return change

    encrypted = zip_of(wanted)
    flags = encrypted.index(b"PK\x01\x02") + 8
    encrypted = changed(changed(encrypted, flags, b"\x01"), 6, b"\x01")
    lzma = zip_of(("wanted.txt", b"text\n" * 1000), method=zipfile.ZIP_LZMA)
    damaged_lzma = changed(lzma, 60, b"\xff" * 20)
    unknown = zip_of(wanted)
    unknown = changed(changed(unknown, unknown.index(b"PK\x01\x02") + 10, b"\x63"), 8, b"\x63")
    sparse = tar_of(wanted, change=_sparse)
    cases = {
        "tar-escape": (tar_of(("../../x", b"")), "outside of the folder"),
        "tar-absolute": (tar_of(("/etc/cron.d/x", b"")), "outside of the folder"),
        "tar-drive": (tar_of(("C:\\x", b"")), "outside of the folder"),
        "tar-backslash": (tar_of(("..\\x", b"")), "outside of the folder"),
        "tar-hidden-escape": (tar_of(("a/../../x", b"")), "outside of the folder"),
        "tar-link": (tar_of(("wanted.txt", b""), change=kind(tarfile.SYMTYPE, "/etc/passwd")), r"lacks wanted\.txt"),
        "tar-hard-link": (
            tar_of(("wanted.txt", b""), change=kind(tarfile.LNKTYPE, "/etc/passwd")),
            r"lacks wanted\.txt",
        ),
        "tar-device": (tar_of(("wanted.txt", b""), change=kind(tarfile.CHRTYPE)), r"lacks wanted\.txt"),
        "tar-pipe": (tar_of(("wanted.txt", b""), change=kind(tarfile.FIFOTYPE)), r"lacks wanted\.txt"),
        "tar-twice": (tar_of(wanted, wanted), r"several files wanted\.txt"),
        "tar-cut": (tar_of(("wanted.txt", bytes(10_000)))[:3000], "truncated or damaged"),
        "tar-sparse": (sparse, r"lacks wanted\.txt"),
        "tar-gz-cut": (gzip.compress(tar_of(wanted), mtime=0)[:-10], "truncated or damaged"),
        "tar-gz-nothing": (b"\x1f\x8b" + bytes(100), "truncated or damaged"),
        "zip-escape": (zip_of(("../x", b"")), "outside of the folder"),
        "zip-absolute": (zip_of(("/x", b"")), "outside of the folder"),
        "zip-link": (zip_of(("wanted.txt", b"/etc/passwd"), link=True), r"lacks wanted\.txt"),
        "zip-encrypted": (encrypted, "truncated or damaged"),
        "zip-lzma-damaged": (damaged_lzma, "truncated or damaged"),
        "zip-unknown-method": (unknown, "truncated or damaged"),
        "zip-cut": (zip_of(wanted)[:-30], "truncated or damaged"),
        "noise": (random.Random(2).randbytes(5000), "truncated or damaged"),
        "empty": (b"", "truncated or damaged"),
        "page": (b"<!doctype html><title>404</title>" * 40, "truncated or damaged"),
    }
    for label, (contents, sentence) in cases.items():
        yield Case(f"download-{label}", "archive", contents, sentence)
    for label, names in {"file-then-folder": ("a", "a/b"), "folder-then-file": ("a/b", "a")}.items():
        contents = tar_of(*((name, b"") for name in names))
        yield Case(f"download-{label}", "whole", contents, "truncated or damaged")


def _sparse(info: tarfile.TarInfo) -> None:
    info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 50), "GNU.sparse.realsize": str(1 << 50)}
