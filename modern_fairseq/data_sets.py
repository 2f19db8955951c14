"""Data sets: files that were cut off are named when they are opened, and no shell reads their names."""

import functools
import os
import struct
import types
from typing import Any

import numpy as np

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


def index_without_a_shell(module: types.ModuleType) -> None:
    """Index FASTA files without a shell: fasta_dataset.py:60 and :65 put the file's name, of which a data folder gives
    the languages, into a shell's command line. Can go when fairseq > 0.12.2 quotes it."""

    def _build_index(self: Any, path: str) -> tuple[Any, Any]:
        offsets: list[int] = []
        sizes: list[int] = []
        position = 0
        with open(module.fasta_file_path(path), "rb") as file:
            for line in file:
                if line.startswith(b">"):
                    offsets.append(position)
                    sizes.append(0)
                elif sizes:
                    sizes[-1] += len(line.rstrip(b"\n"))
                position += len(line)
        return np.array(offsets, dtype=np.int64), np.array(sizes, dtype=np.int64)

    module.FastaDataset._build_index = _build_index  # type: ignore[attr-defined]
