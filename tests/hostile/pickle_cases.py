"""Pickles that call, build or allocate, in both layouts that torch.save has had."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

PROTO = b"\x80\x02"
MAGIC = b"".join(
    pickle.dumps(part, 2)
    for part in (torch.serialization.MAGIC_NUMBER, 1001, {"protocol_version": 1001, "little_endian": True})
)
EMPTY_CFG = b"X\x03\x00\x00\x00cfg}"
DAMAGED = "damaged|not written by torch.save"


class Case(NamedTuple):
    name: str
    reader: str
    """Which of the project's readers is given the file; its suffix too."""
    contents: bytes
    sentence: str
    """A pattern for what the refusal says."""


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    data = pickle.encode_long(value)
    return b"\x8a" + bytes([len(data)]) + data


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def checkpoint(value: bytes, key: str = "model") -> bytes:
    """The instructions for a checkpoint that has ``value`` among its entries."""
    entries = (EMPTY_CFG if key != "cfg" else b"") + (text("model") + b"}" if key != "model" else b"")
    return PROTO + b"}(" + entries + text(key) + value + b"u."


def zipped(instructions: bytes, records: Mapping[str, bytes] | None = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for record, contents in {"data.pkl": instructions, "version": b"3\n", **(records or {})}.items():
            archive.writestr(zipfile.ZipInfo(f"x/{record}"), contents)
    return file.getvalue()


def legacy(instructions: bytes, storages: Mapping[str, bytes] | None = None, item: int = 4) -> bytes:
    storages = storages or {}
    bodies = [struct.pack("<q", len(body) // item) + body for body in storages.values()]
    return MAGIC + instructions + pickle.dumps(list(storages), 2) + b"".join(bodies)


FUNCTIONS = (
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "Popen"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "getattr"),
    ("builtins", "__import__"),
    ("builtins", "open"),
    ("__builtin__", "apply"),
    ("importlib", "import_module"),
    ("runpy", "run_path"),
    ("shutil", "rmtree"),
    ("ctypes", "string_at"),
    ("functools", "partial"),
    ("operator", "attrgetter"),
    ("pickle", "loads"),
    ("torch", "load"),
    ("torch.jit", "load"),
    ("torch.hub", "load"),
    ("torch.storage", "_load_from_bytes"),
    ("torch.nn.modules.linear", "Linear"),
    ("numpy", "load"),
    ("numpy", "memmap"),
    ("numpy.lib.npyio", "DataSource"),
    ("numpy.dtypes", "Float64DType"),
    ("omegaconf.omegaconf", "OmegaConf"),
    ("fairseq.meters", "SumMeter"),
    ("torch._utils", "_rebuild_sparse_tensor"),
    ("torch._utils", "_rebuild_qtensor"),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"),
    ("torch._utils", "_rebuild_nested_tensor"),
    ("torch._utils", "_rebuild_wrapper_subclass"),
    ("torch._utils", "_rebuild_device_tensor_from_numpy"),
    ("torch._utils", "_rebuild_parameter_with_state"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch", "Tensor"),
    ("torch", "FloatTensor"),
    ("torch.nn.parameter", "Parameter"),
)


def calls() -> Iterator[Case]:
    """GLOBAL and REDUCE of a function that is not admitted; the class is named."""
    for module, attribute in FUNCTIONS:
        instructions = checkpoint(name(module, attribute) + text("touch called") + b"\x85R")
        sentence = rf"class (\w+\.)+{attribute}, which is none of those"
        for layout in (zipped, legacy):
            yield Case(f"call-{module}.{attribute}-{layout.__name__}", "checkpoint", layout(instructions), sentence)
    yield Case(
        "name-of-control-characters",
        "checkpoint",
        zipped(checkpoint(name("\x1b[2Jos", "system"))),
        "a class whose name is none",
    )
    yield Case("name-without-end", "checkpoint", zipped(checkpoint(b"c" + b"a" * 5000)), DAMAGED)


_MADE = text("touch called")
INSTRUCTIONS = {
    "INST": b"(" + _MADE + b"ios\nsystem\n",
    "OBJ": b"(" + name("builtins", "list") + _MADE + b"o",
    "NEWOBJ_EX": name("builtins", "list") + b")}\x92",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "STACK_GLOBAL": text("os") + text("system") + b"\x93",
    "PERSID": b"Pstorage\n",
    "NEXT_BUFFER": b"\x97",
    "READONLY_BUFFER": b"}\x98",
    "FRAME": b"\x95" + struct.pack("<Q", 1 << 40),
    "MEMOIZE": b"}\x94",
    "BYTEARRAY8": b"\x96" + struct.pack("<Q", 1 << 40),
    "LONG4": b"\x8b" + struct.pack("<i", 1 << 30),
    "LONG": b"L" + b"9" * 100_000 + b"L\n",
    "INT": b"I1\n",
    "FLOAT": b"F1.0\n",
    "STRING": b"S'a'\n",
    "BINSTRING": b"T" + struct.pack("<i", 1 << 30),
    "UNICODE": b"Va\n",
    "SHORT_BINUNICODE": b"\x8c\x01a",
    "BINUNICODE8": b"\x8d" + struct.pack("<Q", 1 << 40),
    "BINBYTES": b"B" + struct.pack("<I", 1 << 31),
    "BINBYTES8": b"\x8e" + struct.pack("<Q", 1 << 40),
    "SHORT_BINBYTES": b"C\x01a",
    "FROZENSET": b"(\x91",
    "EMPTY_SET": b"\x8f",
    "ADDITEMS": b"](K\x01\x90",
    "DUP": b"}2",
    "POP": b"}}0",
    "POP_MARK": b"}(}1",
    "PUT": b"}p0\n",
    "GET": b"g0\n",
    "DICT": b"(d",
    "LIST": b"(l",
}


def instructions() -> Iterator[Case]:
    """Each pickle instruction that torch.save does not write, and those it writes where they do not belong."""
    for opcode, code in INSTRUCTIONS.items():
        yield Case(f"instruction-{opcode}", "checkpoint", zipped(checkpoint(code)), f"pickle instruction {opcode},")
    yield Case("instruction-unknown", "checkpoint", zipped(checkpoint(b"\xff")), "pickle instruction 255,")
    misplaced = {
        "reduce-of-a-number": (b"K\x01)R", DAMAGED),
        "reduce-of-a-class": (name("builtins", "list") + b")R", r"calls builtins\.list, which is not to be called"),
        "newobj-of-a-class": (name("builtins", "dict") + b")\x81", r"calls builtins\.dict, which is not to be called"),
        "reduce-of-ndarray": (name("numpy", "ndarray") + b")R", r"calls numpy\.ndarray, which is not to be called"),
        "reduce-without-arguments": (name("collections", "OrderedDict") + b"K\x01R", DAMAGED),
        "build-of-a-dict": (b"}}b", "gives state to what takes none"),
        "build-of-a-class": (name("builtins", "int") + b"}b", "gives state to what takes none"),
        "build-of-a-function": (name("_codecs", "encode") + b"}b", "gives state to what takes none"),
        "append-to-a-dict": (b"}K\x01a", DAMAGED),
        "append-to-text": (text("a") + b"(K\x01e", DAMAGED),
        "item-of-a-list": (b"]K\x01K\x01s", "sets items of an object of type list"),
        "item-of-a-class": (name("builtins", "int") + b"(K\x01K\x01u", "sets items of an object of type type"),
        "odd-items": (b"}(K\x01u", DAMAGED),
        "empty-stack": (b"(R" * 40, DAMAGED),
        "memo-that-is-not-there": (b"h\xff", DAMAGED),
        "long-text": (b"X" + struct.pack("<I", (1 << 32) - 1), DAMAGED),
        "text-that-is-not-utf-8": (b"X\x01\x00\x00\x00\xff", DAMAGED),
        "class-as-a-value": (name("numpy", "ndarray"), r"a class, numpy\.ndarray, among its data"),
        "function-as-a-value": (name("_codecs", "encode"), r"a class, _codecs\.encode, among its data"),
        "object-without-state": (name("argparse", "Namespace") + b")\x81", "without its contents"),
    }
    for label, (code, sentence) in misplaced.items():
        yield Case(label, "checkpoint", zipped(checkpoint(code)), sentence)


def doubled(levels: int, begin: bytes = b"]", make: bytes = b"(h\x00h\x00t") -> bytes:
    """A tuple of ``begin`` and, level by level, of what has the level before twice."""
    return b"(" + begin + b"q\x00" + (make + b"q\x00") * levels + b"t"


def sizes() -> Iterator[Case]:
    """Little that becomes much."""
    prime = 2**61 - 1
    cases = {
        "tuples-doubled": (doubled(60), "repeats parts of itself"),
        "lists-doubled": (doubled(60, make=b"](h\x00h\x00e"), "repeats parts of itself"),
        "dicts-doubled": (doubled(60, make=b"}(K\x01h\x00K\x02h\x00u"), "repeats parts of itself"),
        "text-repeated": (doubled(40, text("x" * 1000)), "repeats parts of itself"),
        "tuples-in-tuples": (b")" + b"\x85" * 100_000, "nested in more than 100 others"),
        "list-in-itself": (b"]q\x00h\x00a", "nested in more than 100 others, or in themselves"),
        "dict-in-itself": (b"}q\x00K\x01h\x00s", "nested in more than 100 others, or in themselves"),
        "marks": (b"(" * 900_000, "more instructions than a checkpoint of its size"),
        "empty-dicts": (b"]" + b"(" + b"}" * 2_000_000 + b"e", "more instructions than a checkpoint of its size"),
        "number-of-2000-bits": (number(1 << 2000), "an integer of more than 256 bits"),
        "keys-of-one-hash": (
            b"}(" + b"".join(number(k * prime) + b"N" for k in range(1, 20_000)) + b"u",
            "beyond 60 bits",
        ),
        "members-of-one-hash": (
            name("builtins", "set") + b"](" + b"".join(number(k * prime) for k in range(1, 20_000)) + b"e\x85R",
            "beyond 60 bits",
        ),
        "tuple-as-a-key": (b"})Ns", "a key of type tuple"),
        "bytearray-of-a-number": (
            name("builtins", "bytearray") + number(10**11) + b"\x85R",
            r"class builtins\.bytearray",
        ),
        "text-by-a-codec": (name("_codecs", "encode") + text("a" * 100_000) + text("idna") + b"\x86R", "than latin1"),
        "counter-of-text": (name("collections", "Counter") + text("abc") + b"\x85R", r"class collections\.Counter"),
        "ordered-of-text": (name("collections", "OrderedDict") + text("abc") + b"\x85R", "something else than pairs"),
        "set-of-lists": (name("builtins", "set") + b"](]e\x85R", "a key of type list"),
        "path-of-numbers": (name("pathlib", "PosixPath") + number(1) + b"\x85R", "a path of something else than text"),
        "complex-of-text": (name("builtins", "complex") + text("1") + b"\x85R", r"class builtins\.complex"),
        "size-of-text": (name("torch", "Size") + text("1") + b"\x85R", r"class torch\.Size"),
        "device-of-text": (name("torch", "device") + text("\n") + b"\x85R", r"class torch\.device"),
        "defaultdict-of-a-function": (
            name("collections", "defaultdict") + name("_codecs", "encode") + b"\x85R",
            r"a class, _codecs\.encode, among its data",
        ),
    }
    for label, (code, sentence) in cases.items():
        yield Case(label, "checkpoint", zipped(checkpoint(code)), sentence)
