"""The golden files of tests/golden, and copies of them with something changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.golden_check.archive import Arrays, read_arrays, read_sidecar, write
from tests.golden_check.fixtures import Golden
from tests.golden_check.parity import Parity, compare_file
from tests.golden_check.recipes import OtherKind, refuse_other_kinds
from tests.golden_check.recompute import recompute

FOLDER = Path(__file__).parents[1] / "golden"


def is_verified(path: Path) -> bool:
    """Whether ``tests.golden_check`` takes it."""
    try:
        refuse_other_kinds(path)
    except OtherKind:
        return False
    return True


GOLDENS = sorted(FOLDER.glob("*.npz"))
VERIFIED = [path for path in GOLDENS if is_verified(path)]


def golden_path(name: str) -> Path:
    return FOLDER / f"{name}_S.npz"


POSTLN, CLINIC = golden_path("postln"), golden_path("clinic_postln")
"""Of two generations of fairseq."""


def measure(path: Path) -> Parity:
    return compare_file(path)[1]


def arrays_of(path: Path) -> Arrays:
    return read_arrays(path)


def tensors_of(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """What the file has under ``prefix``, by the rest of the name."""
    arrays = arrays_of(path)
    return {name.removeprefix(prefix): torch.from_numpy(x) for name, x in arrays.items() if name.startswith(prefix)}


def provenance(path: Path) -> dict[str, Any]:
    """What the sidecar says of how the file was made."""
    provenance = read_sidecar(path)["provenance"]
    assert isinstance(provenance, dict)
    return provenance


def changed(path: Path, folder: Path, change: Callable[[Arrays], object], **sidecar: object) -> Path:
    """A copy of a golden file after ``change``, described as it is, and with other entries in its sidecar."""
    arrays = {name: array.copy() for name, array in arrays_of(path).items()}
    change(arrays)
    copy = folder / path.name
    write(copy, arrays, read_sidecar(path) | sidecar)
    return copy


def unchanged(arrays: Arrays) -> None:
    pass


def wrong(name: str, where: tuple[int, ...] = (), by: float = 1e-3) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays[name][where] += np.asarray(by).astype(arrays[name].dtype)

    return change


def assert_shapes(golden: Golden, model: nn.Module, words: int) -> None:
    """That a model of a golden file of other sizes has its gradients and logits, which are numbers."""
    computed = recompute(golden, model)
    assert {key: value.shape for key, value in computed.gradients.items()} == {
        key: value.shape for key, value in golden.gradients.items()
    }
    for mode, logits in computed.logits.items():
        assert logits.shape == (*golden.logits[mode].shape[:2], words)
        assert logits.isfinite().all()


def label(value: object) -> str:
    if isinstance(value, set):
        return ",".join(sorted(value))
    return value.stem if isinstance(value, Path) else value if isinstance(value, str) else ""
