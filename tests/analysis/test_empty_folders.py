"""An analysis that is refused leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_diagnose import DONE, healthy

from fairseq_residuals.__main__ import main


def test_a_file_without_a_record_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").write_text("hello")
    assert main(["diagnose", str(tmp_path / "notes"), "--out", str(tmp_path / "a/b")]) == 2
    assert "has no record of fairseq-train" in capsys.readouterr().err and not (tmp_path / "a").exists()
    (tmp_path / "log").write_text("\n".join([*healthy(), DONE]))
    assert main(["diagnose", str(tmp_path / "log"), "--out", str(tmp_path / "a/b")]) == 0
    assert len(list((tmp_path / "a/b").iterdir())) == 2
