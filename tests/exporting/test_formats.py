"""Every wiring in every format computes what it computes under fairseq, and beam search finds the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_residuals.checkpoints.exporting.comparison import compare, small_model
from fairseq_residuals.core.registry import VARIANTS, list_variants

pytest.importorskip("transformers", reason="the extra hf is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

TOLERANCE = 1e-5
CASES = [
    (variant, task)
    for variant in list_variants()
    for task in ("translation", "language_modeling")
    if not VARIANTS[variant].refusal(alone=task != "translation", topmost=True)
]


@pytest.mark.parametrize(("variant", "task"), CASES)
def test_transformers(variant: str, task: str, tmp_path: Path) -> None:
    row = compare(small_model(variant, task=task), "hf", tmp_path / f"{variant}_{task}")
    assert row.difference <= TOLERANCE
    assert row.differing[0] == 0 and row.differing[1] > 0


def list_of(names: list[str]) -> tuple[str, int]:
    """Return a list of wirings with a layer for each, and its depth."""
    return ",".join(f"{name}:{i}" for i, name in enumerate(names)), len(names)


# A graph takes seconds to trace, whatever it computes, and a second for each layer. So the wirings are layers of one
# model; those that touch cross-attention, or need an encoder, are those of a pair.
ALONE = [name for name in list_variants() if not VARIANTS[name].refusal(alone=True, topmost=False)]
NEEDING_AN_ENCODER = [name for name in list_variants() if name not in ALONE]
# what has to be on top comes last
NEEDING_AN_ENCODER.sort(key=lambda name: bool(VARIANTS[name].refusal(alone=False, topmost=False)))
PAIR = ["realformer", "hybrid_norm", *NEEDING_AN_ENCODER]


@pytest.mark.parametrize("kind", ("torch_export", "onnx"))
@pytest.mark.parametrize(
    ("task", "names"), [("language_modeling", ALONE), ("translation", PAIR)], ids=["alone", "pair"]
)
def test_graphs(task: str, names: list[str], kind: str, tmp_path: Path) -> None:
    row = compare(small_model(*list_of(names), task=task), kind, tmp_path / "out")
    assert row.difference <= TOLERANCE
    assert row.differing[0] == 0 and row.differing[1] > 0
