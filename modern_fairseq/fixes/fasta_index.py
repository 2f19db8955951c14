"""Names of FASTA files are not read by a shell."""

import types
from typing import Any

import numpy as np


def index_without_a_shell(module: types.ModuleType) -> None:
    """Index FASTA files without a shell.

    fasta_dataset.py:60 and :65 put the file's name, of which a data folder gives the languages, into a shell's command
    line. Can go when fairseq > 0.12.2 quotes it.
    """

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
