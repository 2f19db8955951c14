"""The zip archive that ``torch.save`` writes: stored as torch stores it, each record with its checksum."""

import itertools
import re
import struct
import zipfile
from typing import IO

from modern_fairseq.loading.untrusted import Refused

_CHUNK = 1 << 20
_MOST_BYTES_OF_CONTENTS = 16 << 20
"""Of the table at the archive's end, which takes about 80 bytes a tensor."""


def check(file: IO[bytes], size: int) -> dict[str, int]:
    """Read the archive once, all of it.

    An archive whose checksums are all 0 has none (``torch.serialization.set_crc32_options(False)``); only its
    structure is checked.

    Returns:
        The bytes of each record by its name, without the folder that all records are in.

    Raises:
        Refused: a record is not as torch writes it, or another one than was written.
        zipfile.BadZipFile: the file is no archive, or cut off.
    """
    _check_contents(file, size)
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        folder = records[0].filename.partition("/")[0] if records else ""
        for record in records:
            if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
                raise Refused("has a compressed record, which torch.save does not write")
            if record.flag_bits & 1 or not re.fullmatch(r"[^/\\]+(/[\w.\-]+)+", record.filename):
                raise Refused("has a record that is encrypted, or whose name torch.save does not write")
            if not record.filename.startswith(f"{folder}/") or "/../" in f"{record.filename}/":
                raise Refused("has a record outside of the folder that torch.save writes")
        names = {record.filename.lower() for record in records}
        if len(names) < len(records):
            raise Refused("has two records of one name")
        if f"{folder}/constants.pkl" in names:
            raise Refused("is a TorchScript archive, which is a program, not a checkpoint")
        if f"{folder}/data.pkl".lower() not in names:
            raise Refused("is a zip archive without data.pkl, so that torch.save has not written it")
        _check_overlap(file, records, archive.start_dir)
        if any(record.CRC for record in records):
            for record in records:
                _check_sum(archive, record)
    return {record.filename.partition("/")[2]: record.file_size for record in records}


def _check_contents(file: IO[bytes], size: int) -> None:
    """Refuse a table at the end that is not the last thing in the file, or too long to be read."""
    file.seek(max(size - 42, 0))
    tail = file.read(42)
    end = tail[-22:]
    if len(end) < 22 or end[:4] != b"PK\x05\x06":
        raise zipfile.BadZipFile("no end of the archive")
    (length,) = struct.unpack("<I", end[12:16])
    if length == 0xFFFFFFFF and tail[:4] == b"PK\x06\x07":
        file.seek(min(struct.unpack("<Q", tail[8:16])[0], size))
        length = int.from_bytes(file.read(56)[40:48], "little")
    if length > _MOST_BYTES_OF_CONTENTS:
        raise Refused("is an archive with more records than a checkpoint has tensors")


def _check_overlap(file: IO[bytes], records: list[zipfile.ZipInfo], end: int) -> None:
    begins = [*sorted(record.header_offset for record in records), end]
    followers = dict(itertools.pairwise(begins))
    for record in records:
        file.seek(record.header_offset)
        header = file.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile("no header")
        begin = record.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
        if begin + record.file_size > followers[record.header_offset]:
            raise Refused("has records that overlap")


def _check_sum(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> None:
    try:
        with archive.open(record) as contents:
            while contents.read(_CHUNK):
                pass
    except zipfile.BadZipFile:
        raise Refused(
            f"is damaged: record {record.filename} is another one than was written (its checksum differs); get it again"
        ) from None
