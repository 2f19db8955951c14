"""fairseq-train of each task, stopped in the middle of an epoch and started again, is the uninterrupted run to the last
bit: batches, losses, random state, parameters, optimizer."""

from __future__ import annotations

import pytest
import torch
from fairseq.trainer import Trainer
from in_process import train
from running import load
from tiny_jobs import LANGUAGE_MODEL, SPEECH, TRANSLATION

STOP, UPDATES = 4, 8
CASES = {
    "translation": (TRANSLATION, ("--fp16", "--fp16-init-scale", 4, "--fp16-scale-window", 3), "fused_adam"),
    "language model": (LANGUAGE_MODEL, ("--bf16",), "adam"),
    "speech": (SPEECH, ("--bf16",), "fused_adam"),
}
SCHEDULE = ("--lr", 0.005, "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 2, "--clip-norm", 1.0)


@pytest.fixture
def updates(monkeypatch):
    """What each update was made from and what it gave."""
    seen = []
    original = Trainer.train_step

    def train_step(self, samples, *args, **kwargs):
        logged = original(self, samples, *args, **kwargs)
        gradients = [p.grad.clone() for p in self.model.parameters() if p.grad is not None]
        seen.append([samples[0]["id"], torch.tensor(float(logged["loss"])), *gradients, torch.get_rng_state()])
        return logged

    monkeypatch.setattr(Trainer, "train_step", train_step)
    return seen


def state_of(folder):
    saved = load(folder / "checkpoint_last.pt")
    parameters = {k: v for k, v in saved["model"].items() if not k.endswith((".version", "._float_tensor"))}
    return parameters, saved["last_optimizer_state"], saved["extra_state"]["train_iterator"]


@pytest.mark.parametrize("case", CASES)
def test_a_run_goes_on_exactly(case, data_of, updates, tmp_path):
    job, precision, optimizer = CASES[case]
    for folder, lengths in (("whole", (UPDATES,)), ("in two", (STOP, UPDATES))):
        flags = [*job.train_flags(data_of(job), tmp_path / folder), *precision, "--optimizer", optimizer, *SCHEDULE]
        for length in lengths:
            train(*flags, "--max-update", length, "--no-epoch-checkpoints", "--disable-validation")
    assert len(updates) == 2 * UPDATES
    whole, in_two = updates[:UPDATES], updates[UPDATES:]
    torch.testing.assert_close(in_two, whole, rtol=0, atol=0)
    torch.testing.assert_close(state_of(tmp_path / "in two"), state_of(tmp_path / "whole"), rtol=0, atol=0)
