"""Runs as jobs of a cluster, on submitit's local executor."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.compare import command
from fairseq_residuals.lab.compare.cells import read_results

TINY = ["compare", "b2t", "--task", "copy", "--depth", "1", "--dim", "16", "--updates", "16", "--tokens", "300"]
TINY += ["--rates", "0.01", "--seeds", "1", "--baseline-seeds", "1", "--jobs", "2", "--cluster", "local"]


def test_each_run_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the package submitit is missing")

    def refuse(*args: object) -> None:
        raise AssertionError("a run was trained here and not as a job")

    monkeypatch.setattr(command, "carry_out", refuse)
    assert main([*TINY, "--out", str(tmp_path)]) == 0
    (runs,) = tmp_path.glob("copy-*/runs.csv")
    results = read_results(runs)
    assert {result.entry for result in results} == {"pre_ln", "b2t"}
    assert all(len(result.points) == 8 and result.ended != "failed" for result in results)
    assert len(list(runs.parent.glob("jobs/*_result.pkl"))) == 2


def test_without_submitit_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main([*TINY, "--out", str(tmp_path / "out")]) == 1
    assert "--cluster needs the package submitit: pip install submitit" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
