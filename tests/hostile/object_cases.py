"""Arrays, tensors, settings and other objects with a state that would be believed by their own classes."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator

import torch
from pickle_cases import Case, checkpoint, doubled, legacy, name, number, text, zipped

from fairseq_residuals.plugin.checkpoints.safetensors_file import FORMAT, METADATA, VERSION, digest

LATIN = text("latin1")


def raw(data: bytes) -> bytes:
    return name("_codecs", "encode") + text(data.decode("latin1")) + LATIN + b"\x86R"


def dtype(code: str, order: str = "<", fields: bytes = b"NNN") -> bytes:
    state = b"(K\x03" + text(order) + fields + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
    return name("numpy", "dtype") + text(code) + b"\x89\x88\x87R" + state + b"b"


NDARRAY = name("numpy", "ndarray")


def array(
    kind: bytes, shape: bytes, data: bytes, cls: bytes = NDARRAY, module: str = "numpy._core.multiarray"
) -> bytes:
    made = name(module, "_reconstruct") + cls + b"K\x00\x85" + raw(b"b") + b"\x87R"
    return made + b"(K\x01" + shape + kind + b"\x89" + data + b"tb"


def arrays() -> Iterator[Case]:
    """What made NumPy take bytes of the file for addresses, and the like."""
    address = raw(struct.pack("<Q", 0xDEADBEEF))
    one, scalar = b"K\x01\x85", name("numpy._core.multiarray", "scalar")
    cases = {
        "object-by-ndarray": (
            name("builtins", "list") + NDARRAY + one + dtype("O8", "|") + address + b"\x87R\x85R",
            r"calls builtins\.list, which is not to be called",
        ),
        "ndarray-of-numbers": (NDARRAY + one + dtype("f8") + address + b"\x87R", "ndarray, which is not to be called"),
        "ndarray-new": (NDARRAY + one + dtype("f8") + address + b"\x87\x81", "ndarray, which is not to be called"),
        "array-of-objects": (array(dtype("O8", "|"), one, b"]N\x61"), "neither numbers, truth values nor text"),
        "array-of-addresses": (array(dtype("O8", "|"), one, address), "neither numbers, truth values nor text"),
        "array-of-fields": (
            array(dtype("f8", fields=b"N" + text("a") + b"\x85}" + text("a") + b"K\x00s"), one, address),
            "values have fields",
        ),
        "array-of-subarrays": (array(dtype("f8", fields=b"K\x01\x85NN"), one, address), "values have fields"),
        "array-of-records": (array(dtype("V8", "|"), one, address), "neither numbers, truth values nor text"),
        "array-of-dates": (array(dtype("M8"), one, address), "neither numbers, truth values nor text"),
        "array-of-nothing": (array(dtype("U0"), one, raw(b"")), "neither numbers, truth values nor text"),
        "dtype-built-twice": (
            dtype("f8") + b"(K\x03" + text("<") + b"NNNtb",
            "gives state to what takes none",
        ),
        "dtype-of-an-order": (dtype("f8", "x"), "without a byte order"),
        "dtype-of-a-class": (name("numpy", "dtype") + name("builtins", "int") + b"\x85R", "without its contents"),
        "array-of-too-few-bytes": (array(dtype("f8"), b"K\x02\x85", address), "not as many as its shape says"),
        "array-of-too-many-bytes": (array(dtype("i1"), one, address), "not as many as its shape says"),
        "array-of-terabytes": (array(dtype("f8"), number(1 << 60) + b"\x85", address), "not as many as its shape says"),
        "array-of-a-negative-shape": (array(dtype("f8"), b"J\xff\xff\xff\xff\x85", address), "or is negative"),
        "array-of-no-shape": (array(dtype("f8"), b"N", address), "without shape and bytes"),
        "array-of-a-list": (array(dtype("f8"), one, b"]K\x01a"), "not as many as its shape says"),
        "array-of-no-characters": (array(dtype("U1"), one, raw(b"\xff\xff\xff\xff")), "text that is none"),
        "array-of-a-subclass": (
            array(dtype("f8"), one, address, cls=name("builtins", "list")),
            r"a class that is not numpy\.ndarray",
        ),
        "array-of-numpy-1": (array(dtype("O8", "|"), one, address, module="numpy.core.multiarray"), "neither numbers"),
        "array-built-twice": (
            array(dtype("f8"), one, address) + b"(K\x01tb",
            "gives state to what takes none",
        ),
        "scalar-of-an-object": (scalar + dtype("O8", "|") + address + b"\x86R", "neither numbers"),
        "scalar-of-too-few-bytes": (scalar + dtype("f8") + raw(b"1") + b"\x86R", "not as many as its shape says"),
    }
    for label, (code, sentence) in cases.items():
        yield Case(label, "checkpoint", zipped(checkpoint(code)), sentence)


def pid(key: str, numel: int, location: str = "cpu", kind: str = "FloatStorage", view: bytes = b"") -> bytes:
    fields = text("storage") + name("torch", kind) + text(key) + text(location) + number(numel)
    return b"(" + fields + view + b"tQ"


def ints(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def rebuilt(
    storage: bytes, offset: int, size: tuple[int, ...], stride: tuple[int, ...], rest: bytes = b"\x89N"
) -> bytes:
    arguments = b"(" + storage + number(offset) + ints(*size) + ints(*stride) + rest + b"t"
    return name("torch._utils", "_rebuild_tensor_v2") + arguments + b"R"


def tensors() -> Iterator[Case]:
    """Tensors beyond their storages, and storages beyond their file: in a record of 4 numbers."""
    good = pid("0", 4)
    beyond = {
        "offset": (5, (1,), (1,)),
        "size": (0, (5,), (1,)),
        "stride": (0, (2,), (4,)),
        "matrix": (0, (2, 3), (3, 1)),
        "huge-stride": (0, (2,), (1 << 62,)),
        "huge-size": (0, (1 << 62,), (1,)),
        "huge-sizes": (0, (1 << 40, 1 << 40), (1 << 40, 1)),
        "huge-offset": (1 << 62, (1,), (1,)),
    }
    for label, place in beyond.items():
        contents = checkpoint(rebuilt(good, *place))
        yield Case(
            f"tensor-{label}", "checkpoint", zipped(contents, {"data/0": bytes(16)}), "reaches beyond its storage"
        )
        view = checkpoint(rebuilt(pid("0", 4, view=b"N"), *place))
        yield Case(f"tensor-{label}-legacy", "checkpoint", legacy(view, {"0": bytes(16)}), "reaches beyond its storage")
    cases = {
        "tensor-of-negative-stride": (rebuilt(good, 3, (4,), (-1,)), "or is negative"),
        "tensor-of-negative-offset": (rebuilt(good, -1, (1,), (1,)), "or is negative"),
        "tensor-of-negative-size": (rebuilt(good, 0, (-4,), (1,)), "or is negative"),
        "tensor-expanded": (rebuilt(good, 0, (1 << 40,), (0,)), r"has tensors of \d+ bytes in a file of"),
        "tensor-of-overlapping-rows": (rebuilt(good, 0, (2, 2), (1, 1)), "whose elements overlap"),
        "tensor-of-no-elements": (rebuilt(good, 0, (0, 1 << 62), (1, 1)), "an impossible shape"),
        "tensor-of-65-dimensions": (rebuilt(good, 0, (1,) * 65, (1,) * 65), "more than 64 dimensions"),
        "tensor-of-two-ranks": (rebuilt(good, 0, (2, 2), (1,)), "do not go together"),
        "tensor-of-truth-values": (
            name("torch._utils", "_rebuild_tensor_v2") + b"(" + good + b"K\x00\x88\x85K\x01\x85\x89NtR",
            "no integer",
        ),
        "tensor-of-no-storage": (rebuilt(b"N", 0, (1,), (1,)), "a tensor without a storage"),
        "tensor-with-hooks": (rebuilt(good, 0, (1,), (1,), b"\x89" + text("hook")), "more than storage, shape"),
        "tensor-with-flags": (rebuilt(good, 0, (1,), (1,), b"\x89N}" + text("neg") + b"\x88s"), "more than storage"),
        "tensor-built": (
            rebuilt(good, 0, (1,), (1,)) + b")b",
            "gives state to an object of class torch",
        ),
        "parameter-of-text": (
            name("torch._utils", "_rebuild_parameter") + text("a") + b"\x89N\x87R",
            "a parameter that is no tensor",
        ),
        "storage-alone": (good, "a storage among its data"),
        "storage-without-record": (pid("1", 4), "has not as many"),
        "storage-longer-than-record": (pid("0", 5), "has not as many"),
        "storage-shorter-than-record": (pid("0", 3), "has not as many"),
        "storage-of-terabytes": (pid("0", 1 << 50), "has not as many"),
        "storage-of-negative-length": (pid("0", -4), "or is negative"),
        "storage-of-two-types": (b"(" + good + pid("0", 2, kind="DoubleStorage") + b"t", "two types or sizes"),
        "storage-elsewhere": (pid("0", 4, "meta"), "a device that torch does not have"),
        "storage-on-a-path": (pid("0", 4, "../x"), "a device that torch does not have"),
        "storage-of-no-type": (
            b"(" + text("storage") + name("builtins", "int") + text("0") + text("cpu") + b"K\x04tQ",
            "a storage without a type",
        ),
        "module-source": (b"(" + text("module") + b"NNNNtQ", "something else than a storage"),
        "storage-by-number": (b"K\x01Q", "something else than a storage"),
        "type-of-storage-alone": (name("torch", "FloatStorage"), r"a class, torch\.FloatStorage, among its data"),
    }
    for label, (code, sentence) in cases.items():
        yield Case(label, "checkpoint", zipped(checkpoint(code), {"data/0": bytes(16)}), sentence)
    shared = doubled(8, rebuilt(pid("0", 1 << 18), 0, (1 << 18,), (1,)))
    sentence = r"has tensors of \d+ bytes in a file of"
    yield Case("tensor-256-times", "checkpoint", zipped(checkpoint(shared), {"data/0": bytes(1 << 20)}), sentence)
    old = rebuilt(pid("0", 4, view=b"N"), 0, (4,), (1,))
    view = rebuilt(pid("0", 4, view=text("v") + b"K\x02K\x03\x87"), 0, (1,), (1,))
    huge = rebuilt(pid("0", 1 << 40, view=b"N"), 0, (4,), (1,))
    yield Case("legacy-storage-unfilled", "checkpoint", legacy(checkpoint(old)), "does not fill every storage")
    yield Case(
        "legacy-storage-of-terabytes", "checkpoint", legacy(checkpoint(huge), {"0": bytes(16)}), "more than the file"
    )
    yield Case("legacy-view-beyond", "checkpoint", legacy(checkpoint(view), {"0": bytes(16)}), "a part of a storage")
    other = legacy(checkpoint(old), {"1": bytes(16)})
    yield Case("legacy-storage-of-another-key", "checkpoint", other, "does not fill every storage")
    short = legacy(checkpoint(old), {"0": bytes(8)}) + bytes(100)
    yield Case("legacy-storage-of-another-size", "checkpoint", short, "damaged")


def _stated(module: str, cls: str, **state: bytes) -> bytes:
    items = b"".join(text(key) + value for key, value in state.items())
    return name(module, cls) + b")\x81}(" + items + b"ub"


def config(**settings: bytes) -> bytes:
    nodes = {key: _stated("omegaconf.nodes", "AnyNode", _val=value) for key, value in settings.items()}
    contents = b"}(" + b"".join(text(key) + node for key, node in nodes.items()) + b"u"
    return _stated("omegaconf.dictconfig", "DictConfig", _content=contents)


def settings() -> Iterator[Case]:
    """Settings that would be computed, and objects that would not be what their class says."""
    plain = {key: text(value) for key, value in {"a": "${b}${b}", "b": "${oc.env:HOME}"}.items()}
    mapping = b"}(" + b"".join(text(key) + value for key, value in plain.items()) + b"u"
    endless = config(a=text("${b}"), b=text("${a}"))
    whole = b"}(" + text("a") + text("${b}") + text("b") + b"}" + text("c") + text("d") + b"su"
    namespace = _stated("argparse", "Namespace", x=text("${oc.env:HOME}"))
    nested = b"}" + text("m") + namespace + b"s"
    cases = {
        "config-environment": ("cfg", config(a=text("${oc.env:HOME}")), "which OmegaConf would compute"),
        "config-decode": ("cfg", config(a=text("${oc.decode:'[1]'}")), "which OmegaConf would compute"),
        "config-resolver-by-name": ("cfg", config(a=text("${${b}:HOME}")), "which OmegaConf would compute"),
        "config-growth": ("cfg", config(a=text("${b}${b}"), b=text("x")), "which OmegaConf would compute"),
        "config-endless": ("cfg", endless, "refer to each other without end"),
        "config-plain": ("cfg", mapping, "which OmegaConf would compute"),
        "config-namespace": ("cfg", nested, "which OmegaConf would compute"),
        "config-list": ("cfg", b"}" + text("m") + b"]" + text("${oc.env:X}") + b"as", "which OmegaConf would compute"),
        "config-in-lines": ("cfg", config(a=text("${oc.create:\n{}}")), "which OmegaConf would compute"),
        "args-environment": ("args", namespace, "which OmegaConf would compute"),
        "config-of-several": ("cfg", whole, "which stands for several others"),
        "config-of-many-layers": ("cfg", config(encoder_layers=number(10**7)), "of more layers than its"),
        "config-of-a-class": ("cfg", config(a=name("builtins", "int")), "an OmegaConf value that is not plain"),
        "config-of-a-list": ("cfg", _stated("omegaconf.dictconfig", "DictConfig", _content=b"]"), "without contents"),
        "config-of-a-number": (
            "cfg",
            _stated("omegaconf.listconfig", "ListConfig", _content=b"K\x01"),
            "without contents",
        ),
        "config-with-arguments": (
            "cfg",
            name("omegaconf.dictconfig", "DictConfig") + b"}\x85\x81",
            "gives arguments to an",
        ),
        "namespace-method": (
            "args",
            _stated("argparse", "Namespace", _get_kwargs=text("x")),
            "a _get_kwargs of its own",
        ),
        "namespace-class": ("args", _stated("argparse", "Namespace", __class__=text("x")), "a __class__ of its own"),
        "namespace-numbered": ("args", name("argparse", "Namespace") + b")\x81}K\x01K\x01sb", "else than attributes"),
        "namespace-slots": ("args", name("argparse", "Namespace") + b")\x81}}\x86b", "something else than attributes"),
        "namespace-in-itself": (
            "args",
            name("argparse", "Namespace") + b")\x81q\x00}" + text("x") + b"h\x00sb",
            "or in themselves",
        ),
        "state-dict-method": ("model", _ordered(keys=b"N"), "attributes other than _metadata"),
        "state-dict-versions": ("model", _ordered(_metadata=b"]"), "attributes other than _metadata"),
        "state-dict-version": ("model", _ordered(_metadata=b"}" + text("a") + b"]s"), "that are no mapping"),
    }
    for label, (key, code, sentence) in cases.items():
        yield Case(label, "checkpoint", zipped(checkpoint(code, key)), sentence)
    yield Case("no-checkpoint", "checkpoint", zipped(pickle.dumps([1], 2)), "is not a fairseq checkpoint")


def safetensors() -> Iterator[Case]:
    """Settings in the metadata of tensors, which would be computed, and headers."""
    cases = {
        "environment": ({"a": "${oc.env:HOME}"}, "which OmegaConf would compute"),
        "growth": ({"a": "${b}${b}", "b": "${a}${a}"}, "which OmegaConf would compute"),
        "endless": ({"a": "${b}", "b": "${a}"}, "refer to each other without end"),
        "method": ({"_get_kwargs": "x"}, "the name of a method"),
        "class": ({"__class__": "x"}, "the name of a method"),
    }
    for label, (settings, sentence) in cases.items():
        tensor = torch.zeros(1)
        record = {"format": FORMAT, "version": VERSION, "shared": {}, "settings": settings}
        record["digest"] = digest({"w": tensor})
        place = {"dtype": "F32", "shape": [1], "data_offsets": [0, tensor.nbytes]}
        contents = _with_header({"__metadata__": {METADATA: json.dumps(record)}, "w": place}, tensor.nbytes)
        yield Case(f"safetensors-{label}", "safetensors", contents, sentence)
    place = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    headers = {
        "empty": b"",
        "too-short": b"\0\0\0",
        "header-of-2^63-bytes": struct.pack("<Q", 2**63) + b"{}",
        "header-longer-than-the-file": struct.pack("<Q", 1000) + b"{}",
        "header-of-17-MiB": struct.pack("<Q", 17 << 20) + b" " * (17 << 20),
        "no-JSON": struct.pack("<Q", 4) + b"abcd",
        "beyond-the-file": _with_header({"a": place}, 4),
        "overlapping": _with_header({"a": place, "b": place}, 8),
        "shape-of-10^18-values": _with_header({"a": place | {"shape": [10**9, 10**9]}}, 8),
        "negative-offset": _with_header({"a": place | {"data_offsets": [-8, 0]}}, 8),
        "unknown-type": _with_header({"a": place | {"dtype": "OBJECT"}}, 8),
        "pickle": b"\x80\x02cos\nsystem\n.",
    }
    for label, contents in headers.items():
        yield Case(f"safetensors-{label}", "safetensors", contents, "is no safetensors file, or damaged")


def _with_header(content: dict[str, object], size: int) -> bytes:
    """A file of ``size`` bytes of data, all zero."""
    head = json.dumps(content).encode()
    return struct.pack("<Q", len(head)) + head + bytes(size)


def _ordered(**state: bytes) -> bytes:
    items = b"".join(text(key) + value for key, value in state.items())
    return name("collections", "OrderedDict") + b")R}(" + items + b"ub"
