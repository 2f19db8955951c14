"""What a checkpoint may make besides plain values: each class by a small function of our own under its name.

A pickle says which function to call with which arguments. The functions that NumPy, torch, OmegaConf and argparse have
for it trust their arguments (NumPy takes bytes for pointers, torch lets a tensor grow beyond its storage), so that none
of them is ever called by a file: what is called is listed in :data:`NAMES`, and checks what it is given.
"""

import argparse
import collections
import functools
import math
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from modern_fairseq.loading.safe_tensors import parameter, tensor, tensor_of_dtype
from modern_fairseq.loading.untrusted import Refused, plain_int

_CODE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[US][1-9]\d{0,5}")
_FACTORIES = (int, float, bool, str, list, dict, set, None)
MOST_BITS = 256
"""Of an integer; the number that begins a file before torch 1.6 has 77."""


@dataclass(frozen=True)
class Call:
    """What an instruction of a file may call."""

    function: Callable[..., Any]


@dataclass(frozen=True)
class Name:
    """A class that files name and never call."""

    name: str


@dataclass(eq=False)
class Unbuilt:
    """An object whose state is still to come."""

    name: str
    build: Callable[[Any], Any]
    places: list[int] = field(default_factory=list)
    """Where the unpickler's memo has it."""


class ConfigDict(dict):
    """The contents of an OmegaConf mapping, until the whole file is read."""


class ConfigList(list):
    """The contents of an OmegaConf list, until the whole file is read."""


def check_key(key: Any) -> Any:
    """Return ``key`` if it may be a key of a dict or a member of a set; others could all be chosen to share a hash.

    Raises:
        Refused: it may not.
    """
    is_small = not isinstance(key, int | np.integer) or abs(int(key)) < 2**60
    if isinstance(key, str | bytes | int | float | np.generic | None) and is_small:
        return key
    raise Refused(f"has a key of type {type(key).__name__}, or one beyond 60 bits, in a mapping or set")


def restore_ordered(target: collections.OrderedDict, state: Any) -> None:
    """Give a state dict its attribute ``_metadata``, and of that the versions of the modules alone.

    Raises:
        Refused: the state is something else.
    """
    if not isinstance(state, dict) or set(state) - {"_metadata"} or not isinstance(state.get("_metadata", {}), dict):
        raise Refused("has a mapping with attributes other than _metadata")
    metadata = collections.OrderedDict()
    for name, values in state.get("_metadata", {}).items():
        if not isinstance(values, dict):
            raise Refused("has versions of modules (_metadata) that are no mapping")
        metadata[name] = {key: value for key, value in values.items() if key == "version"}
    target._metadata = metadata  # type: ignore[attr-defined]


def _ordered(pairs: Any = ()) -> collections.OrderedDict:
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise Refused("makes an OrderedDict of something else than pairs")
    return collections.OrderedDict((check_key(key), value) for key, value in pairs)


def _counter(counts: Any = None) -> collections.Counter:
    if counts is not None and type(counts) is not dict:
        raise Refused("makes a Counter of something else than a mapping")
    return collections.Counter(counts)


def _set(members: Any = ()) -> set:
    if not isinstance(members, list | tuple):
        raise Refused("makes a set of something else than a list")
    return {check_key(member) for member in members}


def _defaultdict(factory: Any = None) -> collections.defaultdict:
    if factory is not None and factory not in _FACTORIES:
        raise Refused("makes a defaultdict of something else than plain types")
    return collections.defaultdict(factory)


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Refused("encodes text as something else than latin1")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""  # others are text encoded


def _bytearray(*arguments: Any) -> bytearray:
    if not arguments:
        return bytearray()
    if len(arguments) == 2:
        return bytearray(_encode(*arguments))
    if type(arguments[0]) is not bytes:
        raise Refused("makes a bytearray of something else than bytes")
    return bytearray(arguments[0])


def _complex(real: Any, imaginary: Any) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise Refused("makes a complex number of something else than two numbers")
    return complex(real, imaginary)


def _size(sizes: Any) -> torch.Size:
    if not isinstance(sizes, list | tuple):
        raise Refused("makes a torch.Size of something else than integers")
    return torch.Size([plain_int(size) for size in sizes])


def _device(kind: Any, index: Any = None) -> torch.device:
    if not isinstance(kind, str) or not re.fullmatch(r"[a-z]{1,16}(:\d{1,3})?", kind):
        raise Refused("names a device that torch does not have")
    return torch.device(kind) if index is None else torch.device(kind, plain_int(index))


def _dtype(code: Any, *alignment_and_copy: Any) -> Unbuilt:
    """Return a plain dtype; its state gives the byte order, and may give nothing else."""
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        raise Refused("has an array whose values are neither numbers, truth values nor text")

    def build(state: Any) -> np.dtype:
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise Refused("has an array without a byte order")
        if any(part is not None for part in state[2:5]):
            raise Refused("has an array whose values have fields")
        return np.dtype(code).newbyteorder(state[1])

    return Unbuilt("numpy.dtype", build)


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


def _reconstruct(kind: Any, _shape: Any, _code: Any) -> Unbuilt:
    if kind != Name("numpy.ndarray"):
        raise Refused("has an array of a class that is not numpy.ndarray")

    def build(state: Any) -> np.ndarray:
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[1], tuple):
            raise Refused("has an array without shape and bytes")
        shape = tuple(plain_int(size) for size in state[1])
        return _filled(state[2], shape, state[4], "F" if state[3] else "C")

    return Unbuilt("numpy.ndarray", build)


def _scalar(dtype: Any, data: Any) -> np.generic:
    return _filled(dtype, (1,), data)[0]


def _attributes(cls: type, state: Any) -> Any:
    """Return an object of ``cls`` with the attributes that a file gives it, none of which hides a method."""
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise Refused(f"gives an object of class {cls.__name__} something else than attributes")
    for name in state:
        if callable(getattr(cls, name, None)):
            raise Refused(f"gives an object of class {cls.__name__} a {name} of its own")
    instance: Any = object.__new__(cls)
    vars(instance).update(state)
    return instance


def _meter(cls: type, state: Any) -> Any:
    if isinstance(state, dict) and not all(isinstance(v, int | float | None | torch.Tensor) for v in state.values()):
        raise Refused(f"gives an object of class {cls.__name__} values that are no numbers")
    return _attributes(cls, state)


def _config(kind: type, content_type: type, state: Any) -> Any:
    """Return the contents alone: whoever reads them sets flags anew, and types and parents follow from the contents."""
    content = state.get("_content") if isinstance(state, dict) else state
    if content is None or isinstance(content, str):
        return content
    if not isinstance(state, dict) or type(content) is not content_type:
        raise Refused(f"has an OmegaConf {content_type.__name__} without contents")
    return kind(content)


def _config_value(state: Any) -> Any:
    if not isinstance(state, dict) or not isinstance(state.get("_val"), str | int | float | bytes | None):
        raise Refused("has an OmegaConf value that is not plain")
    return state["_val"]


def _config_metadata(_state: Any) -> None:
    return None


def _later(name: str, build: Callable[[Any], Any]) -> Call:
    """Make an object that gets its contents by its state."""

    def make(*arguments: Any) -> Unbuilt:
        if arguments:
            raise Refused(f"makes an object of class {name} with arguments")
        return Unbuilt(name, build)

    return Call(make)


@functools.cache
def names() -> dict[str, Any]:
    """Return what fairseq's own checkpoints hold beside plain types, by the names that files use."""
    from fairseq.logging import meters

    admitted: dict[str, Any] = {
        # models, tasks and criteria that are configured by argparse keep their arguments in it
        "argparse.Namespace": _later("argparse.Namespace", functools.partial(_attributes, argparse.Namespace)),
        # a configuration that was not turned into plain dicts before it was saved
        "omegaconf.dictconfig.DictConfig": _later("DictConfig", functools.partial(_config, ConfigDict, dict)),
        "omegaconf.listconfig.ListConfig": _later("ListConfig", functools.partial(_config, ConfigList, list)),
        "omegaconf.base.ContainerMetadata": _later("ContainerMetadata", _config_metadata),
        "omegaconf.base.Metadata": _later("Metadata", _config_metadata),
        "omegaconf.nodes.AnyNode": _later("AnyNode", _config_value),
        "typing.Any": typing.Any,
        "collections.OrderedDict": Call(_ordered),
        "collections.Counter": Call(_counter),
        "collections.defaultdict": Call(_defaultdict),
        "_codecs.encode": Call(_encode),
        "builtins.bytes": Call(_no_bytes),
        "builtins.bytearray": Call(_bytearray),
        "builtins.complex": Call(_complex),
        "builtins.set": Call(_set),
        **{f"builtins.{kind.__name__}": kind for kind in (dict, list, tuple, int, float, bool, str)},
        # metrics that are arrays, such as the n-gram counts of --eval-bleu
        "numpy.ndarray": Name("numpy.ndarray"),
        "numpy.dtype": Call(_dtype),
        # torch._tensor writes these for every tensor
        "torch._utils._rebuild_tensor": Call(tensor),
        "torch._utils._rebuild_tensor_v2": Call(tensor),
        "torch._utils._rebuild_tensor_v3": Call(tensor_of_dtype),
        "torch._utils._rebuild_parameter": Call(parameter),
        "torch.storage.UntypedStorage": torch.UntypedStorage,
        "torch.Size": Call(_size),
        "torch.device": Call(_device),
        **{f"{dtype}": dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)},
    }
    # numpy.core as NumPy 1 wrote it
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        admitted |= {f"{module}._reconstruct": Call(_reconstruct), f"{module}.scalar": Call(_scalar)}
    # extra_state of fairseq before 0.9, and what its meters are called now
    for cls in (meters.AverageMeter, meters.StopwatchMeter, meters.TimeMeter):
        for module in ("fairseq.meters", "fairseq.logging.meters"):
            admitted[f"{module}.{cls.__name__}"] = _later(cls.__name__, functools.partial(_meter, cls))
    return admitted
