"""Objects that a checkpoint may make besides plain values: each class by a small function of our own under its name.

A pickle says which function to call with which arguments. The functions that NumPy, torch, OmegaConf and argparse have
for it trust their arguments (NumPy takes bytes for pointers, torch lets a tensor grow beyond its storage), so that none
of them is ever called by a file: what is called is listed in :func:`classes`, and checks what it is given.
"""

import argparse
import collections
import functools
import math
import pathlib
import re
import sys
import typing
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from modern_fairseq.loading.untrusted import Refused, plain_int

_CODE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[US][1-9]\d{0,5}")
_PLAIN = (dict, list, tuple, int, float, bool, str)
_MOST_BITS = 256
_MOST_DIMENSIONS = 64
_DEPTH = 100
_VALUES = 1_000_000
_COPIES = 64
STORAGES = {
    **{"Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16},
    **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8},
    **{"Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128},
}
"""Types of the numbers in storages, by what files call these."""


class Description:
    """An object as a file describes it, until the whole file is read; a subclass for each name that files use."""

    name: ClassVar[str]
    entry: ClassVar[Any]
    """A :class:`_Maker`, or the value that the name stands for."""
    arguments: tuple[Any, ...]
    state: Any
    has_state: bool
    items: dict[Any, Any]

    def __new__(cls, *arguments: Any) -> "Description":
        """Describe what a file would get by calling the class."""
        self = super().__new__(cls)
        self.arguments, self.state, self.has_state, self.items = arguments, None, False, {}
        return self


class _Maker(NamedTuple):
    """Way to make an object of its description."""

    function: Callable[..., Any]
    """A function of the items, the state and the arguments, as far as the class has some."""
    takes: str = "arguments"
    """Names of what ``function`` gets (items, state, arguments), in any order."""
    place: str = "call"
    """Whether the parts are data, or what only a call may get, such as storages."""
    keep: tuple[str, ...] | None = None
    """Keys of the state that are looked at; None for all."""


_NEVER_MADE = object()
"""Mark of a class that files name, and never call."""


class Storage(NamedTuple):
    """A storage that a file names, and later its contents."""

    dtype: torch.dtype
    size: int
    """Size in bytes."""
    location: str
    bytes: torch.UntypedStorage | None = None

    def filled(self, fill: Callable[[memoryview], None]) -> "Storage":
        """Return the storage with contents, which ``fill`` writes."""
        contents = torch.empty(self.size, dtype=torch.uint8)
        if self.size:
            fill(memoryview(contents.numpy()))  # type: ignore[arg-type]
        return self._replace(bytes=contents.untyped_storage())


def check_key(key: Any) -> Any:
    """Return ``key`` if it may be a key of a dict, or in a set; others could all be chosen to share a hash.

    Raises:
        Refused: it may not.
    """
    is_small = not isinstance(key, int | np.integer) or abs(int(key)) < 2**60
    if isinstance(key, str | bytes | int | float | np.generic | None) and is_small:
        return key
    raise Refused(f"has a key of type {type(key).__name__}, or one beyond 60 bits, in a mapping or set")


class _Weight(NamedTuple):
    values: int
    bytes: int
    """Bytes of tensors."""
    height: int


class Builder:
    """Makes what a file describes, and refuses what would be far larger than the file, were it written out."""

    def __init__(self, storages: dict[str, Storage], bytes_of_file: int) -> None:
        self.storages = storages
        self._bytes_of_file = bytes_of_file
        self._known: dict[tuple[int, str], tuple[Any, _Weight]] = {}

    def build(self, value: Any) -> Any:
        """Return the value, with an object for each description.

        Raises:
            Refused: an object is not what its class says; the value is nested too deeply, or in itself; it is far
                larger than the file.
        """
        return self._built(value, "data", 0)[0]

    def _built(self, value: Any, place: str, depth: int) -> tuple[Any, _Weight]:
        """Return the object and its weight; ``place`` is where it is: in "data" or a "call"."""
        key = (id(value), place)
        built, weight = self._known.get(key, (None, _Weight(1, 0, 1)))
        if depth + weight.height > _DEPTH:
            raise Refused(f"has values nested in more than {_DEPTH} others, or in themselves")
        if key in self._known:
            return built, weight
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise Refused(f"has an integer of more than {_MOST_BITS} bits")
        if isinstance(value, type):
            return self._named(value, place), weight
        if not isinstance(value, Description | dict | list | tuple):
            return value, weight
        parts: list[_Weight] = []

        def part(inner: Any, place: str = place) -> Any:
            made, its_weight = self._built(inner, place, depth + 1)
            parts.append(its_weight)
            return made

        if isinstance(value, Description):
            built = self._made(value, place, part)
        elif isinstance(value, dict):
            built = {check_key(part(key)): part(item) for key, item in value.items()}
        else:
            built = type(value)(part(item) for item in value)
        values, height = sum(w.values for w in parts), max((w.height for w in parts), default=0)
        size = built.nbytes if isinstance(built, torch.Tensor) else sum(w.bytes for w in parts)
        weight = _Weight(1 + values, size, 1 + height)
        if weight.values > _VALUES + self._bytes_of_file // 16:
            raise Refused(f"repeats parts of itself so often that it has {weight.values} values")
        if weight.bytes > _COPIES * self._bytes_of_file:
            raise Refused(f"has tensors of {weight.bytes} bytes in a file of {self._bytes_of_file}")
        self._known[key] = built, weight
        return built, weight

    def _named(self, cls: type, place: str) -> Any:
        entry = typing.cast(type[Description], cls).entry
        if not isinstance(entry, _Maker) and entry is not _NEVER_MADE:
            return entry
        if place != "call":
            raise Refused(f"has a class, {typing.cast(type[Description], cls).name}, among its data")
        return cls

    def _made(self, value: Description, place: str, part: Callable[..., Any]) -> Any:
        maker = value.entry
        if not isinstance(maker, _Maker):
            raise Refused(f"calls {value.name}, which is not to be called")
        if value.name == "storage" and place != "call":
            raise Refused("has a storage among its data that is of no tensor")
        for name, is_there in {"items": value.items, "state": value.has_state, "arguments": value.arguments}.items():
            if is_there and name not in maker.takes:
                raise Refused(f"gives {name} to an object of class {value.name}, which takes none")
        if "state" in maker.takes and not value.has_state and "items" not in maker.takes:
            raise Refused(f"has an object of class {value.name} without its contents")
        if maker.keep is not None and isinstance(value.state, dict):
            value.state = {key: value.state[key] for key in maker.keep if key in value.state}
        takes = [part(getattr(value, name), maker.place) for name in ("items", "state") if name in maker.takes]
        arguments: Any = part(value.arguments, maker.place) if "arguments" in maker.takes else ()
        if value.name == "storage":
            return self.storages[arguments[0]]
        return maker.function(*takes, *arguments)


def _ordered(items: dict, state: Any, pairs: Any = ()) -> collections.OrderedDict:
    """Make a state dict; of its attributes it keeps ``_metadata``, and of that the versions of the modules alone."""
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise Refused("makes an OrderedDict of something else than pairs")
    made = collections.OrderedDict((check_key(key), value) for key, value in (*pairs, *items.items()))
    state = {} if state is None else state
    if not isinstance(state, dict) or set(state) - {"_metadata"} or not isinstance(state.get("_metadata", {}), dict):
        raise Refused("has a mapping with attributes other than _metadata")
    if not all(isinstance(values, dict) for values in state.get("_metadata", {}).values()):
        raise Refused("has versions of modules (_metadata) that are no mapping")
    if state:
        versions = {
            name: {"version": of["version"]} if "version" in of else {} for name, of in state["_metadata"].items()
        }
        made._metadata = collections.OrderedDict(versions)  # type: ignore[attr-defined]
    return made


def _defaultdict(items: dict, factory: Any = None) -> collections.defaultdict:
    if factory is not None and factory not in _PLAIN:
        raise Refused("makes a defaultdict of something else than plain types")
    return collections.defaultdict(factory, items)


def _set(items: Any) -> set:
    if not isinstance(items, list):
        raise Refused("makes a set of something else than a list")
    return {check_key(item) for item in items}


def _path(*parts: Any) -> pathlib.Path:
    if not all(isinstance(part, str) for part in parts):
        raise Refused("makes a path of something else than text")
    return pathlib.Path(*parts)


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("encodes text as something else than latin1")
    return text.encode("latin1")


def _dtype(state: Any, code: Any, *alignment_and_copy: Any) -> np.dtype:
    """Return a plain dtype; its state gives the byte order, and may give nothing else."""
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        raise Refused("has an array whose values are neither numbers, truth values nor text")
    if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
        raise Refused("has an array without a byte order")
    if any(part is not None for part in state[2:5]):
        raise Refused("has an array whose values have fields")
    return np.dtype(code).newbyteorder(state[1])


def _filled(dtype: Any, shape: tuple[int, ...], data: Any, order: typing.Literal["C", "F"] = "C") -> np.ndarray:
    if not isinstance(dtype, np.dtype) or type(data) is not bytes or math.prod(shape) * dtype.itemsize != len(data):
        raise Refused("has an array whose bytes are not as many as its shape says")
    if not data:
        return np.zeros(shape, dtype)
    if dtype.kind == "b":  # any other byte than 0 and 1 is none of a bool's
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape, order=order)
    array = np.frombuffer(data, dtype).reshape(shape, order=order).copy(order=order)
    if dtype.kind == "U" and array.view(np.dtype("u4").newbyteorder(dtype.byteorder)).max() > sys.maxunicode:
        raise Refused("has an array of text that is none")
    return array


def _array(state: Any, kind: Any, _shape: Any, _code: Any) -> np.ndarray:
    if kind is not classes()["numpy.ndarray"]:
        raise Refused("has an array of a class that is not numpy.ndarray")
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[1], tuple):
        raise Refused("has an array without shape and bytes")
    return _filled(state[2], tuple(plain_int(size) for size in state[1]), state[4], "F" if state[3] else "C")


def _tensor(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
) -> torch.Tensor:
    """Build a tensor in ``storage``, of which no element lies beyond it or, unless it is expanded, shares its place."""
    if not isinstance(storage, Storage) or hooks or metadata or type(requires_grad) is not bool:
        raise Refused("has a tensor without a storage, or with more than storage, shape and strides")
    if not isinstance(size, tuple) or not isinstance(stride, tuple) or len(size) != len(stride):
        raise Refused("has a tensor whose shape and strides do not go together")
    if len(size) > _MOST_DIMENSIONS:
        raise Refused(f"has a tensor of more than {_MOST_DIMENSIONS} dimensions")
    sizes, strides = [plain_int(n) for n in size], [plain_int(n) for n in stride]
    if math.prod(sizes):
        end = plain_int(offset)
        # an expanded dimension has steps of 0; how large a tensor may be in all is for the Builder to say
        for step, count in sorted(pair for pair in zip(strides, sizes, strict=True) if pair[0] > 0 and pair[1] > 1):
            if step <= end - offset:
                raise Refused("has a tensor whose elements overlap")
            end += step * (count - 1)
        if end >= storage.size // storage.dtype.itemsize:
            raise Refused("has a tensor that reaches beyond its storage")
    elif max(plain_int(offset), *sizes, *strides, 0) >= 2**31:
        raise Refused("has a tensor without elements of an impossible shape")
    assert storage.bytes is not None, "a storage is read before its tensors are built"
    empty = torch.empty((0,), dtype=storage.dtype, device=storage.bytes.device)
    return empty.set_(storage.bytes, offset, sizes, strides).requires_grad_(requires_grad)  # type: ignore[call-overload]


def _parameter(data: Any, requires_grad: Any, hooks: Any) -> torch.nn.Parameter:
    if type(data) is not torch.Tensor or type(requires_grad) is not bool or hooks:
        raise Refused("has a parameter that is no tensor")
    return torch.nn.Parameter(data, requires_grad)


def _namespace(state: Any) -> argparse.Namespace:
    """Return one with the attributes that a file gives it, none of which hides a method."""
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise Refused("gives a Namespace something else than attributes")
    for name in state:
        if callable(getattr(argparse.Namespace, name, None)):
            raise Refused(f"gives a Namespace a {name} of its own")
    made = argparse.Namespace()
    vars(made).update(state)
    return made


def _config(content_type: type, state: Any) -> Any:
    """Return the contents alone, as fairseq 0.12.2 itself writes them; it makes a configuration of them on loading."""
    content = state.get("_content") if isinstance(state, dict) else state
    if content is None or isinstance(content, str):
        return content
    if not isinstance(state, dict) or type(content) is not content_type:
        raise Refused(f"has an OmegaConf {content_type.__name__} without contents")
    return content


def _config_value(state: Any) -> Any:
    if not isinstance(state, dict) or not isinstance(state.get("_val"), str | int | float | bytes | None):
        raise Refused("has an OmegaConf value that is not plain")
    return state["_val"]


def _nothing(*_: Any) -> None:
    return None


def _entries() -> Iterable[tuple[str, Any]]:
    """Yield what fairseq's own checkpoints hold beside plain types, by the names that files use."""
    # models, tasks and criteria that are configured by argparse keep their arguments in it
    yield "argparse.Namespace", _Maker(_namespace, "state", "data")
    # a configuration that fairseq 0.10 saved, in the place of plain dicts
    for name, kind in {"dictconfig.DictConfig": dict, "listconfig.ListConfig": list}.items():
        yield f"omegaconf.{name}", _Maker(functools.partial(_config, kind), "state", "data", ("_content",))
    yield "omegaconf.nodes.AnyNode", _Maker(_config_value, "state", "data", ("_val",))
    for name in ("ContainerMetadata", "Metadata"):
        yield f"omegaconf.base.{name}", _Maker(_nothing, "state", keep=())
    yield "typing.Any", typing.Any
    yield "collections.OrderedDict", _Maker(_ordered, "items state arguments", "data")
    yield "collections.defaultdict", _Maker(_defaultdict, "items arguments", "data")
    yield "builtins.set", _Maker(_set, place="data")
    for module in ("pathlib", "pathlib._local"):  # the latter in Python 3.13
        yield f"{module}.PosixPath", _Maker(_path)
    yield "_codecs.encode", _Maker(_encode)
    yield "builtins.bytes", _Maker(lambda: b"")  # others are text encoded
    for plain in _PLAIN:
        yield f"builtins.{plain.__name__}", plain
    # metrics that are arrays, such as the n-gram counts of --eval-bleu; numpy.core as NumPy 1 wrote it
    yield "numpy.ndarray", _NEVER_MADE
    yield "numpy.dtype", _Maker(_dtype, "state arguments")
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        yield f"{module}._reconstruct", _Maker(_array, "state arguments")
        yield f"{module}.scalar", _Maker(lambda dtype, data: _filled(dtype, (1,), data)[0])
    # torch._tensor writes these for every tensor
    yield "storage", _Maker(_nothing)
    for numbers in STORAGES:
        yield f"torch.{numbers}Storage", _NEVER_MADE
    yield "torch._utils._rebuild_tensor", _Maker(_tensor)
    yield "torch._utils._rebuild_tensor_v2", _Maker(_tensor)
    yield "torch._utils._rebuild_parameter", _Maker(_parameter)
    for dtype in vars(torch).values():
        if isinstance(dtype, torch.dtype):
            yield str(dtype), dtype
    # extra_state of fairseq before 0.9, from which fairseq 0.12.2 reads no meter, and what its meters are called now
    for meter in ("AverageMeter", "StopwatchMeter", "TimeMeter"):
        for module in ("fairseq.meters", "fairseq.logging.meters"):
            yield f"{module}.{meter}", _Maker(_nothing, "state", keep=())


@functools.cache
def classes() -> dict[str, type[Description]]:
    """Return a class for each name that a file may use."""
    return {name: type("Described", (Description,), {"name": name, "entry": entry}) for name, entry in _entries()}
