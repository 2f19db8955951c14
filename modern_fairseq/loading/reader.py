"""Reads what ``torch.save`` wrote: the container, the pickle in it, and the bytes of its storages.

torch's own restricted unpickler does not serve: it checks no sums, reads compressed records, leaves storages unset that
a file does not fill, and takes any key for a mapping. Here the pickle makes plain values and descriptions alone. What
they describe is made by :mod:`modern_fairseq.loading.objects`, once all is read.
"""

import _compat_pickle
import functools
import io
import os
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable
from typing import IO, Any

import torch

from modern_fairseq.loading.objects import STORAGES, Builder, Description, Storage, check_key, classes
from modern_fairseq.loading.untrusted import Foreign, Refused, plain_int

DAMAGED = "is damaged (truncated?) or was not written by torch.save"
_MAGIC = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
"""Bytes with which files of the format before torch 1.6 begin."""
_CHUNK = 1 << 20
_LOCATION = re.compile(r"(cpu|cuda|mps|xpu|hpu|npu)(:\d{1,3})?")
_INSTRUCTIONS = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "BININT BININT1 BININT2 BINFLOAT BINUNICODE SHORT_BINSTRING LONG1 BINGET LONG_BINGET BINPUT LONG_BINPUT GLOBAL "
    "REDUCE NEWOBJ APPEND APPENDS BINPERSID"
)
"""Instructions that mean what they mean to Python; all that they can call is :class:`Description`."""
_FREE_READS = 200_000
_BYTES_PER_READ = 128
"""A tensor takes about forty reads, and brings its numbers along."""
_LONGEST_NAME = 1000


def read(file: IO[bytes], map_location: Any = None) -> Any:
    """Read a file of either format of ``torch.save``; ``map_location`` is that of ``torch.load``.

    Raises:
        Refused: the file holds what it must not.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(len(_MAGIC))
    file.seek(0)
    if start.startswith(b"PK\x03\x04"):
        value, storages = _read_zip(file, size)
    elif start == _MAGIC:
        value, storages = _read_legacy(file, size)
    else:
        raise Refused(DAMAGED)
    placed = {key: storage._replace(bytes=_moved(storage, map_location)) for key, storage in storages.items()}
    return Builder(placed, size).build(value)


def _moved(storage: Storage, map_location: Any) -> torch.UntypedStorage:
    location = storage.location
    if callable(map_location):
        moved: torch.UntypedStorage | None = map_location(storage.bytes, location)
        if moved is not None:
            return moved
    elif map_location is not None:
        location = str(map_location)
    return torch.serialization.default_restore_location(storage.bytes, location)  # type: ignore[no-any-return]


def _read_zip(file: IO[bytes], size: int) -> tuple[Any, dict[str, Storage]]:
    """Read an archive, each record of which is stored as it is, with its checksum.

    An archive whose checksums are all 0 has none (``torch.serialization.set_crc32_options(False)``).
    """
    file.seek(max(size - 22, 0))
    if file.read(4) != b"PK\x05\x06":  # the table has to be the last thing in the file
        raise Refused(DAMAGED)
    with zipfile.ZipFile(file) as archive:
        records = {record.filename.lower(): record for record in archive.infolist()}
        folder = re.escape(next(iter(records), "").partition("/")[0])
        for name, record in records.items():
            in_folder = re.fullmatch(rf"{folder}(/(?!\.\./)[\w.\-]+)+", name)
            if not in_folder or record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1:
                raise Refused("has a record that is compressed, encrypted, or named as torch.save names none")
            if "/data" not in name and record.file_size > 64:
                raise Refused("has a record that torch.save does not write; TorchScript is a program, no checkpoint")
        if len(records) < len(archive.infolist()):
            raise Refused("has two records of one name")
        if sum(record.file_size for record in records.values()) > size:
            raise Refused("has records that overlap")
        contents = {name.partition("/")[2]: record for name, record in records.items()}
        if "data.pkl" not in contents or "constants.pkl" in contents:
            raise Refused("is a zip archive without data.pkl, or a program (TorchScript): torch.save did not write it")
        if not any(record.CRC for record in records.values()):
            for record in records.values():
                del record.CRC  # by which zipfile knows that there is none to compare

        def fill(record: zipfile.ZipInfo, target: memoryview) -> None:
            with archive.open(record) as source:
                for place in range(0, len(target), _CHUNK):
                    part = source.read(_CHUNK)
                    target[place : place + len(part)] = part

        try:
            if "byteorder" in contents and archive.read(contents["byteorder"]) != b"little":
                raise Refused(DAMAGED)
            unpickler = Unpickler(io.BytesIO(archive.read(contents["data.pkl"])), size)
            value = unpickler.load()
            storages = {}
            for key, storage in unpickler.storages.items():
                found = contents.get(f"data/{key}".lower())
                if found is None or found.file_size != storage.size:
                    raise Refused(f"says that storage {key!r} has {storage.size} bytes, and has not as many for it")
                storages[key] = storage.filled(functools.partial(fill, found))
        except zipfile.BadZipFile:
            raise Refused(
                "is damaged: a record is another one than was written (its checksum differs); get it again"
            ) from None
    return value, storages


def _read_legacy(file: IO[bytes], size: int) -> tuple[Any, dict[str, Storage]]:
    """Read four small pickles, that of the value, and the storages, each behind its length."""
    _, protocol, machine = (Unpickler(file, size).load() for _ in range(3))
    if protocol != 1001 or not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise Refused(DAMAGED)
    unpickler = Unpickler(file, size)
    value = unpickler.load()
    keys = Unpickler(file, size).load()
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(unpickler.storages):
        raise Refused("does not fill every storage that it names exactly once")
    storages = {}
    for key in keys:
        storage = unpickler.storages[key]
        if storage.size > size:
            raise Refused(
                f"is damaged (truncated?): storage {key!r} is to have {storage.size} bytes, more than the file"
            )
        if struct.unpack("<q", file.read(8))[0] * storage.dtype.itemsize != storage.size:
            raise Refused(DAMAGED)

        def fill(target: memoryview) -> None:
            if file.readinto(target) != len(target):  # type: ignore[attr-defined]
                raise Refused(DAMAGED)

        storages[key] = storage.filled(fill)
    return value, storages


class _Instructions(dict):
    def __missing__(self, code: int) -> Any:
        opcode = {opcode.code: opcode.name for opcode in pickletools.opcodes}.get(chr(code), code)
        raise Refused(f"has the pickle instruction {opcode}, which torch.save does not write")


class Unpickler(pickle._Unpickler):
    """Makes plain values and descriptions, and notes which storages they name."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    dispatch = _Instructions()

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(_Bounded(file, size), encoding="utf-8")  # type: ignore[arg-type]
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> type[Description]:
        """Look up what a file means by a name, which is no more than :func:`objects.classes` has.

        Raises:
            Foreign: it has none.
        """
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
        full = f"{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}"
        if full in classes():
            return classes()[full]
        if not re.fullmatch(r"[\w.]{1,200}\.\w{1,100}", full):
            raise Refused("holds an object of a class whose name is none")
        raise Foreign(full)

    def persistent_load(self, name: Any) -> Description:
        """Note the storage of a persistent id, and describe it.

        Raises:
            Refused: it is no id that torch writes, or another one of a storage that was named before.
        """
        if type(name) is not tuple or len(name) not in (5, 6) or name[0] != "storage":
            raise Refused("refers to something else than a storage of numbers")
        _, kind, key, location, numel = name[:5]
        described = kind.name if isinstance(kind, type) and issubclass(kind, Description) else ""
        dtype = STORAGES.get(described.removeprefix("torch.").removesuffix("Storage"))
        if dtype is None:
            raise Refused("has a storage without a type")
        if not isinstance(key, str) or not isinstance(location, str) or not _LOCATION.fullmatch(location):
            raise Refused("has a storage without a key, or for a device that torch does not have")
        storage = Storage(dtype, plain_int(numel) * dtype.itemsize, location)
        if self.storages.setdefault(key, storage) != storage:
            raise Refused(f"names storage {key!r} with two types or sizes")
        if name[5:] not in ((), (None,)):
            raise Refused("has a part of a storage, as torch before 0.4 wrote")
        return classes()["storage"](key)

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, Description) or target.has_state:
            raise Refused("gives state to what takes none, or has some")
        target.state, target.has_state = state, True

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        mapping = target.items if isinstance(target, Description) else target
        if type(mapping) is not dict:
            raise Refused(f"sets items of an object of type {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            mapping[key if isinstance(key, Description) else check_key(key)] = value

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])


def _code(name: str) -> int:
    return getattr(pickle, name)[0]


Unpickler.dispatch |= {_code(name): pickle._Unpickler.dispatch[_code(name)] for name in _INSTRUCTIONS.split()}
Unpickler.dispatch |= {
    _code("BUILD"): Unpickler._build,
    _code("SETITEM"): Unpickler._set_item,
    _code("SETITEMS"): lambda unpickler: unpickler._set_items(unpickler.pop_mark()),
}


class _Bounded:
    """A file of which nothing is read that it cannot have, and not for ever."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size
        self._left = _FREE_READS + size // _BYTES_PER_READ

    def read(self, count: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise Refused("has more instructions than a checkpoint of its size")
        if count > self._size:
            raise EOFError
        return self._file.read(count)

    def readline(self) -> bytes:
        line = self._file.readline(_LONGEST_NAME)
        if not line.endswith(b"\n"):
            raise EOFError
        return line
