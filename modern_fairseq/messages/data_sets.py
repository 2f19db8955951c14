"""Data sets whose files were cut off are named when they are opened."""

import functools
import os
import struct
import types
from typing import Any

from fairseq_residuals_errors import UserError

_HEADER = struct.Struct("<9sQBQ")
"""Magic number, version, type of the words, number of sentences; behind it a size of four bytes for each sentence and
where it begins, of eight (indexed_dataset.py:390-470)."""


def whole_files(module: types.ModuleType) -> None:
    """Say which file of a data set is shorter than it was made.

    Where it breaks off, indexed_dataset.py:465 and :523 say "buffer is smaller than requested size" or "offset must be
    non-negative", perhaps hours later. Can go when fairseq > 0.12.2 looks at sizes.
    """
    original, free = module.MMapIndexedDataset._do_init, module.MMapIndexedDataset.__del__

    @functools.wraps(original)
    def _do_init(self: Any, path: str) -> None:
        index, data = module.index_file_path(path), module.data_file_path(path)
        with open(index, "rb") as file:
            header = file.read(_HEADER.size)
            sentences = _HEADER.unpack(header)[-1] if len(header) == _HEADER.size else None
            if sentences is None or os.path.getsize(index) < _HEADER.size + 12 * sentences:
                raise _cut_off(index)
        if not sentences:
            raise UserError(
                f"{index} has no sentences: make it anew with fairseq-preprocess, from a text that has some"
            )
        if not os.path.getsize(data):
            raise _cut_off(data)  # NumPy maps no empty file
        original(self, path)
        begin, size = self._index[sentences - 1]
        if os.path.getsize(data) < int(begin) + int(size) * self._index.dtype().itemsize:
            raise _cut_off(data)

    def __del__(self: Any) -> None:
        if hasattr(self, "_bin_buffer_mmap"):  # not if opening it failed
            free(self)

    module.MMapIndexedDataset._do_init = _do_init  # type: ignore[attr-defined]
    module.MMapIndexedDataset.__del__ = __del__  # type: ignore[attr-defined]


def _cut_off(path: str) -> UserError:
    return UserError(f"{path} is cut off: copy it again, or make it anew with fairseq-preprocess")
