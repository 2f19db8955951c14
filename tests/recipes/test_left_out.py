"""Tables that mix corpora: what can be had is reproduced, the rest is named with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipe_files import CONFIGS, read_table

from fairseq_residuals.lab.recipes import reproduce
from fairseq_residuals.lab.recipes.job import Settings
from fairseq_residuals.lab.recipes.reproduce import Work, jobs_of
from fairseq_residuals.lab.recipes.runner import CommandFailed, Runner
from fairseq_residuals.wirings.core.errors import UserError

MIXED = "depthwise_lstm/table5"


def work_of(folder: Path, overrides: tuple[str, ...] = (), columns: list[str] | None = None, seeds=None) -> Work:
    settings = Settings(CONFIGS, folder / "data", folder / "runs", 1, overrides=overrides)
    return jobs_of(read_table(MIXED), settings, ["12"], seeds, columns)


class Recording(Runner):
    """Notes what was to be run, prepares by writing what says so, and fails where it is told."""

    def __init__(self, fails_for: str = "no corpus") -> None:
        super().__init__()
        self.fails_for, self.prepared, self.trained = fails_for, [], []

    def command(self, command, log, holds=()) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("# started 2026-01-01T00:00:00+00:00\nno such file here\n")
        if command[1] != "prepare":
            self.trained.append(command[command.index("--config-name") + 1])
            raise CommandFailed("it is enough", log)
        self.prepared.append(command[2])
        if command[2] == self.fails_for:
            raise CommandFailed("preparing failed", log)
        Path(command[3]).mkdir(parents=True, exist_ok=True)
        (Path(command[3]) / "prepared.json").write_text("{}")


def carry_out(work: Work, folder: Path, runner: Recording, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(reproduce, "check_references", lambda job, measurements: None)
    trained = []
    monkeypatch.setattr(reproduce, "_carry_out", lambda table, job, *rest: trained.append(job.name))
    with pytest.raises(UserError) as raised:
        reproduce.run(read_table(MIXED), work, folder / "results.csv", runner)
    runner.trained = trained
    return str(raised.value)


def test_a_preparation_that_fails_leaves_its_cells_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = Recording(fails_for="wmt15_cs_en")
    said = carry_out(work_of(tmp_path), tmp_path, runner, monkeypatch)
    assert said == "left out: 2 cells (Cs-En/Std, Cs-En/Ours), for preparing failed: no such file here"
    assert runner.trained == [f"depthwise_lstm/table5/en_de_{variant}_12l" for variant in ("pre_ln", "lstm")]
    assert said in capsys.readouterr().err  # before the trainings too


def test_a_variant_is_asked_of_every_chosen_corpus(tmp_path: Path) -> None:
    asked = ("recipe.variant=public",)
    [job, _] = work_of(tmp_path, asked, ["Cs-En/*"])
    assert job.corpus == tmp_path / "data/wmt15_cs_en/public"
    with pytest.raises(UserError, match="wmt14_en_de has no variant public: choose one of"):
        list(reproduce.show(work_of(tmp_path, asked)))


def test_columns_are_chosen_by_name_or_pattern(tmp_path: Path) -> None:
    """Each once, also for a seed that is given twice."""
    cells = [cell for cells in work_of(tmp_path, columns=["En-De/*"], seeds=[7, 7]).values() for cell in cells]
    assert [(cell.row, cell.column) for cell in cells] == [("12", "En-De/Std"), ("12", "En-De/Ours")]
    with pytest.raises(UserError, match="'Fr-En' is not in it; its columns are En-De/Std, "):
        work_of(tmp_path, columns=["Fr-En"])


def test_a_record_of_what_was_done_needs_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corpus that is missing matters to nobody whose scores are on record."""
    monkeypatch.setattr(reproduce, "_on_record", lambda *of: True)
    reproduce.run(read_table(MIXED), work_of(tmp_path), tmp_path / "results.csv", Recording())
    assert not list(tmp_path.iterdir())
