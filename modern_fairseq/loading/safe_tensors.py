"""Storages and tensors of a file: of the size that the file has bytes for, and never beyond it.

torch allocates whatever a file before torch 1.6 says, and lets a tensor that reaches beyond its storage grow it, with
whatever the memory held.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.serialization import StorageType

from modern_fairseq.loading.untrusted import Refused, plain_int

_LOCATION = re.compile(r"(cpu|cuda|mps|xpu|hpu|npu)(:\d{1,3})?")
_MOST_DIMENSIONS = 64


@dataclass
class Storages:
    """The storages that a file names, against the bytes that it has for them."""

    bytes_of_file: int
    records: dict[str, int] | None
    """Bytes by name, for a zip archive; None for the format before torch 1.6."""
    _known: dict[str, tuple[torch.dtype, int]] = field(default_factory=dict)
    _bytes: int = 0

    def check(self, name: Any) -> None:
        """Refuse the persistent id of a storage that the file has not as many bytes for."""
        fields = ("storage", "type", "key", "location", "numel") + (("view",) if self.records is None else ())
        if type(name) is not tuple or len(name) != len(fields) or name[0] != "storage":
            raise Refused("refers to something else than a storage of numbers")
        _, kind, key, location, numel = name[:5]
        if kind is not torch.UntypedStorage and not isinstance(kind, StorageType):
            raise Refused("has a storage without a type")
        if not isinstance(key, str) or not isinstance(location, str) or not _LOCATION.fullmatch(location):
            raise Refused("has a storage without a key, or for a device that torch does not have")
        dtype = torch.uint8 if isinstance(kind, type) else kind.dtype
        size = plain_int(numel) * dtype.itemsize
        if key in self._known:
            if self._known[key] != (dtype, size):
                raise Refused(f"names storage {key!r} with two types or sizes")
        else:
            self._known[key] = (dtype, size)
            self._bytes += size
        if self.records is not None:
            if self.records.get(f"data/{key}") != size:
                raise Refused(f"says that storage {key!r} has {size} bytes, and has not as many for it")
            return
        if self._bytes > self.bytes_of_file:
            raise Refused(f"is damaged (truncated?): its storages are to have {self._bytes} bytes, more than the file")
        if name[5] is not None:
            self._check_view(name[5], numel)

    def _check_view(self, view: Any, numel: int) -> None:
        if type(view) is not tuple or len(view) != 3 or not isinstance(view[0], str) or view[0] in self._known:
            raise Refused("has a part of a storage that is not described")
        if plain_int(view[1]) + plain_int(view[2]) > numel:
            raise Refused("has a part of a storage that reaches beyond it")

    def check_filled(self, keys: Any) -> None:
        """Refuse a list of the storages that follow which is not that of all storages; others would stay unset."""
        if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(self._known):
            raise Refused("does not fill every storage that it names exactly once")


def tensor(
    storage: Any,
    offset: Any,
    size: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    metadata: Any = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Build a tensor of shape ``size`` in ``storage``; strides and offset count elements.

    Raises:
        Refused: an element lies beyond the storage, or two share a place.
    """
    if not isinstance(storage, torch.storage.TypedStorage) or hooks or metadata or type(requires_grad) is not bool:
        raise Refused("has a tensor without a storage, or with more than storage, shape and strides")
    if not isinstance(size, tuple) or not isinstance(stride, tuple) or len(size) != len(stride):
        raise Refused("has a tensor whose shape and strides do not go together")
    if len(size) > _MOST_DIMENSIONS:
        raise Refused(f"has a tensor of more than {_MOST_DIMENSIONS} dimensions")
    untyped = storage._untyped_storage
    dtype = dtype or storage.dtype
    capacity = untyped.nbytes() // dtype.itemsize
    sizes, strides = [plain_int(n) for n in size], [plain_int(n) for n in stride]
    if math.prod(sizes):
        end = plain_int(offset)
        for step, count in sorted((step, count) for step, count in zip(strides, sizes, strict=True) if count > 1):
            if step <= end - offset:
                raise Refused("has a tensor whose elements overlap")
            end += step * (count - 1)
        if end >= capacity:
            raise Refused("has a tensor that reaches beyond its storage")
    elif max(plain_int(offset), *sizes, *strides, 0) >= 2**31:
        raise Refused("has a tensor without elements of an impossible shape")
    empty = torch.empty((0,), dtype=dtype, device=untyped.device)
    return empty.set_(untyped, offset, sizes, strides).requires_grad_(requires_grad)  # type: ignore[call-overload]


def tensor_of_dtype(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> torch.Tensor:
    """Build a tensor as :func:`tensor` does, of a dtype that has no type of storage."""
    if not isinstance(dtype, torch.dtype):
        raise Refused("has a tensor without a type")
    return tensor(storage, offset, size, stride, requires_grad, hooks, metadata, dtype)


def parameter(data: Any, requires_grad: Any, hooks: Any) -> torch.nn.Parameter:
    """Build a parameter of a tensor.

    Raises:
        Refused: it is no tensor.
    """
    if type(data) is not torch.Tensor or type(requires_grad) is not bool or hooks:
        raise Refused("has a parameter that is no tensor")
    return torch.nn.Parameter(data, requires_grad)
