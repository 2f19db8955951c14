"""fairseq-residuals prepare, and scripts/<corpus>/prepare.sh, as a user runs them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from prepared import Prepared, run
from running import environment, execute, kill_at
from stand_ins import STAND_INS

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.data.corpora import PUBLISHED

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
COMMAND = "fairseq-residuals"


def test_a_killed_preparation_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """tests/data/test_preparation.py interrupts every step."""
    flags = ["prepare", "cldr_en_de", tmp_path / "out", "--variant", "tiny", "--workers", 2]
    kill_at(r"^prepare: work/encoded \.\.\.", COMMAND, *flags)
    assert not (tmp_path / "out/prepared.json").exists()
    found = run("cldr_en_de", tmp_path / "out", variant="tiny")
    assert found.files() == run("cldr_en_de", tmp_path / "clean", variant="tiny").files()


def test_every_corpus_has_its_script() -> None:
    """All are links to one, which reads its own folder's name."""
    scripts = {path.parent.name: path.resolve() for path in SCRIPTS.glob("*/prepare.sh")}
    assert scripts == dict.fromkeys(PUBLISHED, SCRIPTS / "prepare.sh")


def test_the_script_prepares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this environment in place of the one that it would set up; from a folder of the user's."""
    STAND_INS["zh_en"]().write(tmp_path / "mirror")
    (tmp_path / "scripts/zh_en").mkdir(parents=True)
    (tmp_path / "scripts/setup.sh").write_text(f'set -euo pipefail; VENV="{sys.prefix}"\n')
    shutil.copy(SCRIPTS / "zh_en/prepare.sh", tmp_path / "scripts/zh_en")
    monkeypatch.setenv("MIRROR", (tmp_path / "mirror").as_uri())
    assert environment()["MIRROR"] == (tmp_path / "mirror").as_uri()
    script = tmp_path / "scripts/zh_en/prepare.sh"
    ended = execute(["bash", str(script), "out", "--variant", "large", "--workers", "1"], cwd=tmp_path)
    assert ended.status == 0, ended
    assert "out is ready:\n  test 4\n  test1 4\n  train 50\n  valid 4\n" in ended.out
    assert Prepared(tmp_path / "out").summary["lines"] == {"test": 4, "test1": 4, "train": 50, "valid": 4}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["wmt99"], "there is no corpus wmt99: choose one of wmt14_en_de, "),
        (["iwslt14_de_en"], "OUT is missing"),
        (["iwslt14_de_en", "--sources", "--variant", "joint"], "has no variant joint: choose one of joined, separate"),
        (["iwslt14_de_en", "out", "--workers", "0"], "--workers 0: at least one process"),
        (["iwslt14_de_en", "out", "--mirror", "nowhere"], "the mirror nowhere is not a folder"),
        (["zh_en", "out"], "zh_en-small/train.zh cannot be downloaded: it comes from the Linguistic Data Consortium"),
    ],
)
def test_mistakes_are_one_sentence(
    flags: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIRROR", raising=False)
    assert main(["prepare", *flags]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("fairseq-residuals prepare: error: ") and expected in error
    assert not list(tmp_path.rglob("*.bin"))


def test_what_a_corpus_needs_is_told_without_touching_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    assert main(["prepare", "gigaword", "--sources"]) == 0
    told = capsys.readouterr().out
    assert "gigaword --variant org_data: UniLM's public copy" in told
    assert "https://drive.usercontent.google.com/download?id=1USoQ8lJgN8kAWnUnRrupMGrPMLlDVqlV" in told
    assert list(tmp_path.iterdir()) == []
    assert main(["prepare", "iwslt14_de_en", "--sources", "--variant", "separate"]) == 0
    assert "--variant joined" not in capsys.readouterr().out
