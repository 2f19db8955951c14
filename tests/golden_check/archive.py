"""Golden files on disk: ``X.npz`` with the arrays and ``X.json``, the sidecar, with their description.

The sidecars of a folder may also be in one file, :data:`TOGETHER`.

A file is written the same way each time: arrays in the order of their names, no dates, and in the sidecar the SHA-256
of every array. It is that of the ``.npy`` member, type and shape included, so that standard tools can check it::

    unzip -p X.npz out/logits.npy | sha256sum
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_residuals.plugin.documents import read_record

Arrays = dict[str, np.ndarray]
FORMAT = "fairseq_residuals golden 1"
"""What the entry ``format`` of a sidecar says of a file in the layout of tests/golden/README.md."""
TOGETHER = "descriptions.json"
"""A file that has the sidecars of a folder, by the names of their golden files."""


def read_sidecar(path: Path) -> dict[str, Any]:
    """Read the description beside the golden file ``path``."""
    return read_description(path.with_suffix(".json"))


def read_description(path: Path) -> dict[str, Any]:
    """Read a JSON object: ``X.json``, or the entry ``X`` of :data:`TOGETHER` in the same folder."""
    return read_record(path) if path.is_file() else deepcopy(_together(path.parent)[path.stem])


@cache
def _together(folder: Path) -> dict[str, Any]:
    """Return the descriptions that are in one file, by name; none where there is no such file."""
    path = folder / TOGETHER
    return read_record(path) if path.is_file() else {}


def read_arrays(path: Path) -> Arrays:
    """Read all arrays of ``path``."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def variant_name(path: Path, sidecar: dict[str, Any]) -> str:
    """Name the wiring: the first word in the sidecar, else that in the file's name (``b2t_S``: b2t)."""
    of_file = re.sub(r"_(init|[A-Z][a-z]?\d*(_initweights)?)$", "", path.stem)
    return str(sidecar.get("variant") or sidecar.get("name") or of_file).partition(" ")[0]


def write(path: Path, arrays: Arrays, description: dict[str, Any]) -> None:
    """Write ``path`` and its sidecar, or the entry of it in :data:`TOGETHER`.

    The same input gives the same bytes (with the same version of zlib).
    """
    members = {name: _npy(arrays[name]) for name in sorted(arrays)}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            file.writestr(info, data, zipfile.ZIP_DEFLATED, 9)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
    described, together = description | {"format": FORMAT, "arrays": hashes}, path.with_name(TOGETHER)
    sidecar = path.with_suffix(".json")
    if together.is_file():
        described, sidecar = read_record(together) | {path.stem: described}, together
        _together.cache_clear()
    sidecar.write_text(json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    # in C order and little-endian, whatever the array was made from
    plain = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    np.lib.format.write_array(stream, plain, version=(1, 0), allow_pickle=False)
    return stream.getvalue()
