"""Data sets whose files are cut off or damaged are named when they are opened."""

import os
import struct
import types
from typing import Any

from fairseq_residuals_errors import UserError
from modern_fairseq.proxies import replaces

_HEADER = struct.Struct("<9sQBQ")
"""Magic number, version, type of the words, number of sentences; behind it a size of four bytes for each sentence and
where it begins, of eight (indexed_dataset.py:390-470)."""


def whole_files(module: types.ModuleType) -> None:
    """Say which file of a data set is not as it was made.

    Where it breaks off, indexed_dataset.py:465 and :523 say "buffer is smaller than requested size" or "offset must be
    non-negative", perhaps hours later, and one wrong size takes gigabytes. Can go when fairseq > 0.12.2 looks at sizes.
    """

    @replaces(module.MMapIndexedDataset, "_do_init")
    def _do_init(original: Any, self: Any, path: str) -> None:
        index, data = module.index_file_path(path), module.data_file_path(path)
        with open(index, "rb") as file:
            header = file.read(_HEADER.size)
            magic, version, words, sentences = _HEADER.unpack(header) if len(header) == _HEADER.size else [None] * 4
            if sentences is None or os.path.getsize(index) < _HEADER.size + 12 * sentences:
                raise _damaged(index, "is cut off")
        if magic != module.MMapIndexedDataset.Index._HDR_MAGIC or version != 1 or words not in module._code_to_dtype:
            raise _damaged(index, "is no index of a data set")
        if not sentences:
            raise UserError(
                f"{index} has no sentences: make it anew with fairseq-preprocess, from a text that has some"
            )
        room = os.path.getsize(data)
        if not room:
            raise _damaged(data, "is cut off")  # NumPy maps no empty file
        original(self, path)
        begins, sizes = self._index._pointers, self._index._sizes
        if ((begins < 0) | (sizes < 0)).any():
            raise _damaged(index, "has sizes or places that are negative")
        if (begins > room - sizes.astype("i8") * self._index.dtype().itemsize).any():
            raise _damaged(data, f"is cut off, or {index} is damaged: it has no place for all sentences")

    @replaces(module.MMapIndexedDataset, "__del__")
    def __del__(original: Any, self: Any) -> None:
        if hasattr(self, "_bin_buffer_mmap"):  # not if opening it failed
            original(self)


def _damaged(path: str, what: str) -> UserError:
    return UserError(f"{path} {what}: copy it again, or make it anew with fairseq-preprocess")
