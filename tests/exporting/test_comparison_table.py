"""The command that compares all formats: what its table says of the rows, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_residuals.checkpoints.exporting.comparison import __main__ as comparison
from fairseq_residuals.checkpoints.exporting.comparison.measure import ALONE, OWN_FILE, PAIR, Row


def row(task: str, difference: float, wrong: int, size: int, wiring: str = "b2t", kind: str = "hf") -> Row:
    return Row(wiring, task, kind, OWN_FILE, difference, (wrong, 10), size)


def test_a_line_has_the_worst_of_pair_and_language_model() -> None:
    rows = [row(PAIR, 2e-7, 0, 30_400), row(ALONE, 3e-6, 1, 20_000), row(ALONE, 1e-7, 0, 1_000, "mhc")]
    table = comparison.table(rows, ["b2t", "mhc"], ["hf", "onnx"])
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert lines[0] == ["wiring", "hf: logits", "hf: tokens", "hf: kB", "onnx: logits", "onnx: tokens", "onnx: kB"]
    assert lines[2:] == [
        ["b2t", "3.0e-06", "1 of 20", "30", "-", "-", "-"],
        ["mhc", "1.0e-07", "0 of 10", "1", "-", "-", "-"],
    ]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the rows that were measured, which takes no time here."""
    folders: list[str] = []

    def compare(subject: tuple[str, str], kind: str, folder: Path) -> Row:
        folders.append(folder.name)
        return row(subject[1], 0.0, 0, 1, subject[0], kind)

    monkeypatch.setattr(comparison, "small_model", lambda wiring, task: (wiring, task))
    monkeypatch.setattr(comparison, "Subject", lambda checkpoint: checkpoint)
    monkeypatch.setattr(comparison, "compare", compare)
    return folders


def test_it_goes_on_from_what_was_measured(measured: list[str], tmp_path: Path) -> None:
    run = ["--variants", "b2t", "mhc", "--results", str(tmp_path / "rows.json")]
    assert comparison.main([*run, "--minutes", "-1"]) == 1 and measured == []
    assert comparison.main([*run, "--formats", "hf", "--tasks", PAIR]) == 0
    assert measured == ["b2t_translation_hf", "mhc_translation_hf"]
    assert comparison.main([*run, "--formats", "hf"]) == 0
    assert measured[2:] == ["b2t_language_modeling_hf", "mhc_language_modeling_hf"]


def test_rows_of_other_versions_are_refused(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"versions": {"torch": "1.0"}, "rows": []}))
    assert comparison.main(["--results", str(path)]) == 1
    error = capsys.readouterr().err
    assert "choose another --results" in error and error.count("\n") == 1 and measured == []
