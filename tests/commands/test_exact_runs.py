"""fairseq-train of each task, stopped in the middle of an epoch and started again, is the uninterrupted run to the last
bit: batches, losses, random state, parameters, optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tiny_data
from fairseq.trainer import Trainer
from in_process import recording, train
from running import assert_same, load, weights
from tiny_jobs import LANGUAGE_MODEL, NEVER_BETTER, SPEECH, TRANSLATION

from fairseq_residuals.plugin.training.trainer_hooks import patch_trainer
from modern_fairseq import table

STOP, UPDATES = 4, 8
CASES = {
    "translation": (TRANSLATION, ("--fp16", "--fp16-init-scale", 4, "--fp16-scale-window", 3), "fused_adam"),
    "language model": (LANGUAGE_MODEL, ("--bf16", "--store-ema", "--ema-fp32", "--ema-update-freq", 3), "adam"),
    "speech": (SPEECH, ("--bf16",), "fused_adam"),
    "speech with SpecAugment": (replace(SPEECH, prepare=tiny_data.write_zipped_features), (), "adam"),
}
SCHEDULE = ("--lr", 0.005, "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 2, "--clip-norm", 1.0)


@pytest.fixture
def updates(monkeypatch):
    """What each update was made from and what it gave."""
    table.when_imported("fairseq.trainer", patch_trainer)  # which the end of the test would undo otherwise
    seen = []
    monkeypatch.setattr(Trainer, "train_step", recording(seen))
    return seen


def state_of(folder):
    saved = load(folder / "checkpoint_last.pt")
    schedule = saved["optimizer_history"][-1]["lr_scheduler_state"]
    extra = saved["extra_state"]
    return weights(saved), extra.get("ema"), saved["last_optimizer_state"], schedule, extra["train_iterator"]


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_exactly(case, data_of, updates, tmp_path):
    job, precision, optimizer = CASES[case]
    for folder, lengths in (("whole", (UPDATES,)), ("in two", (STOP, UPDATES))):
        flags = [*job.train_flags(data_of(job), tmp_path / folder), *precision, "--optimizer", optimizer, *SCHEDULE]
        for length in lengths:
            train(*flags, "--max-update", length, "--no-epoch-checkpoints", "--disable-validation")
    assert len(updates) == 2 * UPDATES
    whole, in_two = updates[:UPDATES], updates[UPDATES:]
    assert_same(in_two, whole)
    assert_same(state_of(tmp_path / "in two"), state_of(tmp_path / "whole"))


EPOCHS = 5
SCHEDULES = {
    "reduce_lr_on_plateau": ("--lr-patience", 1, "--lr-shrink", 0.5, "--lr-threshold", 0),
    "inverse_sqrt": ("--warmup-updates", 2),
    "fixed": ("--lr-shrink", 0.5, "--force-anneal", 2),
}


@pytest.mark.parametrize(
    ("schedule", "stop"), [("reduce_lr_on_plateau", 1), ("reduce_lr_on_plateau", 2), ("inverse_sqrt", 3), ("fixed", 2)]
)
def test_a_schedule_goes_on_exactly_after_any_epoch(schedule, stop, data_of, updates, tmp_path):
    """reduce_lr_on_plateau halves the rate after two validations in vain: those of epochs 2 and 3, and 4 and 5."""
    for folder, lengths in (("whole", (EPOCHS,)), ("in two", (stop, EPOCHS))):
        flags = [*TRANSLATION.train_flags(data_of(TRANSLATION), tmp_path / folder), "--batch-size", 22, *NEVER_BETTER]
        flags += ["--update-ordered-indices-seed"]
        flags += ["--optimizer", "adam", "--lr", 0.01, "--lr-scheduler", schedule, *SCHEDULES[schedule]]
        for length in lengths:
            train(*flags, "--max-epoch", length, "--no-epoch-checkpoints")
    whole, in_two = updates[: len(updates) // 2], updates[len(updates) // 2 :]
    assert_same(in_two, whole)
    assert_same(state_of(tmp_path / "in two"), state_of(tmp_path / "whole"))
    assert len({tuple(sorted(update[0].tolist())) for update in whole}) > 2  # by the seed of the epoch
    if schedule == "reduce_lr_on_plateau":
        assert [update[2] for update in whole[::2]] == pytest.approx([0.01, 0.01, 0.01, 0.005, 0.005])


def test_the_state_of_another_schedule_is_refused(data_of, tmp_path):
    flags = [*TRANSLATION.train_flags(data_of(TRANSLATION), tmp_path), "--optimizer", "adam", "--lr", 0.01]
    train(*flags, "--lr-scheduler", "fixed", "--max-update", 1)
    for schedule in ("inverse_sqrt", "reduce_lr_on_plateau"):
        other = [*flags, "--lr-scheduler", schedule, "--max-update", 2]
        with pytest.raises(KeyError, match="'best'"):
            train(*other)
    train(*other, "--reset-lr-scheduler")
