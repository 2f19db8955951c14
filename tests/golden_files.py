"""The golden files of tests/golden, and copies of them with something changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fairseq_residuals.verification.parity import Parity, compare
from fairseq_residuals.verification.rebuild import read, rebuild

FOLDER = Path(__file__).parent / "golden"
SLASHED, FLAT = FOLDER / "postln_S.npz", FOLDER / "clinic_postln_S.npz"
"""One of each layout."""

Arrays = dict[str, np.ndarray]


def measure(path: Path) -> Parity:
    golden, recipe = read(path)
    return compare(golden, rebuild(golden, recipe))


def changed(path: Path, folder: Path, change: Callable[[Arrays], object], **sidecar: object) -> Path:
    """A copy of a golden file after ``change`` and with other entries in its sidecar."""
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    change(arrays)
    copy = folder / path.name
    np.savez(copy, **arrays)
    description = json.loads(path.with_suffix(".json").read_text()) | sidecar
    copy.with_suffix(".json").write_text(json.dumps(description))
    return copy


def wrong(name: str, where: tuple[int, ...] = (), by: float = 1e-3) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name][where] += np.asarray(by).astype(arrays[name].dtype)

    return change


def drop(*names: str) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        for name in names:
            del arrays[name]

    return change


def label(value: object) -> str:
    if isinstance(value, set):
        return ",".join(sorted(value))
    return value.stem if isinstance(value, Path) else value if isinstance(value, str) else ""
