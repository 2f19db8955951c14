"""A run that is over stays as it is, however often it is started again."""

from __future__ import annotations

import re

import pytest
from in_process import train
from running import execute, load
from tiny_jobs import NEVER_BETTER, TRANSLATION
from yaml_configs import config, hydra_argv

FIXED = ("--optimizer", "adam", "--lr", 0.01, "--lr-scheduler", "fixed", "--max-epoch", 9)
EPOCH = 11
"""The updates of one."""
LIMITS = {
    "--max-update 4": (4, ("--max-update", 4)),
    "--max-epoch 1": (EPOCH, ("--max-epoch", 1)),
    "--stop-time-hours 1e-06": (1, ("--stop-time-hours", 1e-6)),
    "--stop-min-lr 0.005": (EPOCH, ("--lr-shrink", 0.5, "--force-anneal", 1, "--stop-min-lr", 0.005)),
    "--patience 2": (3 * EPOCH, ("--patience", 2, *NEVER_BETTER)),
}


def contents(folder):
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def updates_of(folder):
    return load(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_finished_run_started_again_trains_and_writes_nothing(limit, data_of, tmp_path, caplog):
    caplog.set_level("INFO")
    updates, length = LIMITS[limit]
    flags = [*TRANSLATION.train_flags(data_of(TRANSLATION), tmp_path), *FIXED, *length]
    train(*flags)
    assert updates_of(tmp_path) == updates
    before = contents(tmp_path)
    for _ in range(2):
        caplog.clear()
        train(*flags)
        assert contents(tmp_path) == before
        assert re.search(rf"this run is finished.*\({limit}\)", caplog.text), caplog.text


def test_the_best_of_another_run_in_the_process_is_not_this_ones(data_of, tmp_path):
    for updates, folder in ((9, tmp_path / "good"), (1, tmp_path / "bad")):
        train(*TRANSLATION.train_flags(data_of(TRANSLATION), folder), *FIXED, "--max-update", updates)
    best = [load(tmp_path / name / "checkpoint_best.pt")["extra_state"]["best"] for name in ("good", "bad")]
    assert best[0] < best[1]


def test_patience_goes_on_counting_where_it_was(data_of, tmp_path):
    flags = [*TRANSLATION.train_flags(data_of(TRANSLATION), tmp_path), *FIXED, "--patience", 3, *NEVER_BETTER]
    train(*flags, "--max-epoch", 2)  # one validation that was not better
    train(*flags)
    assert updates_of(tmp_path) == 4 * EPOCH


def test_fine_tuning_a_finished_model_is_a_new_run(data_of, tmp_path):
    data, first, second = data_of(TRANSLATION), tmp_path / "first", tmp_path / "second"
    patience = ("--patience", 1, *NEVER_BETTER)
    train(*TRANSLATION.train_flags(data, first), *FIXED, *patience)
    tuning = ("--finetune-from-model", first / "checkpoint_last.pt", "--max-update", 3)
    train(*TRANSLATION.train_flags(data, second), *FIXED, *patience, *tuning)
    assert updates_of(second) == 3


def test_patience_begins_anew_where_the_best_validation_does(data_of, tmp_path):
    data, first, second = data_of(TRANSLATION), tmp_path / "first", tmp_path / "second"
    patience = ("--patience", 1, *NEVER_BETTER)
    train(*TRANSLATION.train_flags(data, first), *FIXED, *patience)
    anew = ("--restore-file", first / "checkpoint_last.pt", "--reset-dataloader", "--reset-meters")
    train(*TRANSLATION.train_flags(data, second), *FIXED, *patience, *anew)
    assert updates_of(second) == updates_of(first) + 2 * EPOCH


def test_fairseq_hydra_train_ends_alike_with_status_0(data_of, tmp_path):
    data, folder = data_of(TRANSLATION), tmp_path / "save"
    train(*TRANSLATION.train_flags(data, folder), *FIXED, "--max-update", 2)
    before = contents(folder)
    settings = config(TRANSLATION, data, folder)
    settings["optimization"] = {"lr": [0.01], "max_update": 2}
    settings["lr_scheduler"] = {"_name": "fixed"}  # without a dataclass in fairseq, hence without defaults
    again = execute(hydra_argv(settings, tmp_path), cwd=tmp_path)
    assert again.status == 0 and "this run is finished" in again.out, again
    assert contents(folder) == before
