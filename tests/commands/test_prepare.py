"""fairseq-residuals prepare, and scripts/<corpus>/prepare.sh, as a user runs them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from prepared import Prepared, run
from running import environment, execute, kill_at, succeed

from fairseq_residuals.__main__ import main
from fairseq_residuals.lab.data.corpora import PUBLISHED
from fairseq_residuals.lab.data.synthetic.stand_ins import build

SCRIPTS = Path(__file__).parent.parent.parent / "scripts"
COMMAND = "fairseq-residuals"


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mirror")
    build("iwslt14_de_en", folder)
    return folder


def test_a_killed_preparation_ends_with_the_same_bytes(mirror: Path, tmp_path: Path) -> None:
    """tests/data/test_preparation.py interrupts every step."""
    flags = ["prepare", "iwslt14_de_en", tmp_path / "out", "--mirror", mirror, "--stand-in", "--workers", 2]
    kill_at(r"^prepare: work/encoded \.\.\.", COMMAND, *flags)
    assert not (tmp_path / "out/prepared.json").exists()
    found = run("iwslt14_de_en", tmp_path / "out", mirror)
    assert found.files() == run("iwslt14_de_en", tmp_path / "clean", mirror).files()


def test_every_corpus_has_its_script() -> None:
    """All are links to one, which reads its own folder's name."""
    scripts = {path.parent.name: path.resolve() for path in SCRIPTS.glob("*/prepare.sh")}
    assert scripts == dict.fromkeys(PUBLISHED, SCRIPTS / "prepare.sh")


def test_the_script_prepares(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With this environment in place of the one that it would set up."""
    (tmp_path / "scripts/iwslt14_de_en").mkdir(parents=True)
    (tmp_path / "scripts/setup.sh").write_text(f'set -euo pipefail; VENV="{sys.prefix}"\n')
    shutil.copy(SCRIPTS / "iwslt14_de_en/prepare.sh", tmp_path / "scripts/iwslt14_de_en")
    monkeypatch.setenv("MIRROR", mirror.as_uri())
    assert environment()["MIRROR"] == mirror.as_uri()
    ended = execute(["bash", str(tmp_path / "scripts/iwslt14_de_en/prepare.sh"), "out", "--stand-in"], cwd=tmp_path)
    assert ended.status == 0, ended
    assert f"prepare: the files of {mirror.as_uri()} stand in for the published ones\n" in ended.err
    assert "out is ready:\n  test 15\n  train 50\n  valid 2\n" in ended.out
    assert Prepared(tmp_path / "out", mirror).summary["lines"] == {"test": 15, "train": 50, "valid": 2}


def test_files_that_stand_in_for_others_are_taken_where_that_is_asked_for(
    mirror: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "iwslt14_de_en", str(tmp_path / "out"), "--mirror", str(mirror)]) == 1
    error = capsys.readouterr().err
    assert "stand in for the published ones" in error and "--stand-in takes them" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["wmt99"], "there is no corpus wmt99: choose one of wmt14_en_de, "),
        (["iwslt14_de_en"], "OUT is missing"),
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


def test_what_a_corpus_needs_is_told_without_touching_anything(tmp_path: Path) -> None:
    told = succeed(COMMAND, "prepare", "gigaword", "--sources", cwd=tmp_path).out
    assert "gigaword --variant ldc: your own extraction" in told
    assert "https://drive.usercontent.google.com/download?id=1USoQ8lJgN8kAWnUnRrupMGrPMLlDVqlV" in told
    assert list(tmp_path.iterdir()) == []
