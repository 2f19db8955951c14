"""The corpus of hostile files, the same bytes each time.

``python tests/hostile/hostile_files.py FOLDER`` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import archive_cases
import object_cases
import pickle_cases
import text_cases
from pickle_cases import Case

GROUPS = (
    pickle_cases.calls,
    pickle_cases.instructions,
    pickle_cases.sizes,
    object_cases.arrays,
    object_cases.tensors,
    object_cases.settings,
    object_cases.safetensors,
    archive_cases.checkpoints,
    archive_cases.downloads,
    text_cases.documents,
    text_cases.texts,
    text_cases.logs,
)


def cases() -> Iterator[Case]:
    for group in GROUPS:
        yield from group()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    for case in cases():
        (folder / f"{case.name}.{case.reader}").write_bytes(case.contents)
