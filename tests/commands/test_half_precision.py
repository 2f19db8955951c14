"""--fp16 and --bf16 on CPU really train."""

from __future__ import annotations

import pytest
import torch
from rotation import rotated
from running import load, succeed
from tiny import NO_DROPOUT
from tiny_jobs import JOBS

LENGTH = ["--max-update", "10", "--save-interval-updates", "1", "--no-epoch-checkpoints", "--disable-validation"]
OPTIMIZER = ["--optimizer", "adam", "--lr", "0.005", "--lr-scheduler", "fixed"]


@pytest.fixture(scope="module")
def in_full(once, data_of):
    """A job's run in fp32."""

    def train(job):
        return once(f"fp32_{job.name}", lambda folder: run_of(job, data_of(job), folder))[1]

    return train


def run_of(job, data, folder, *precision):
    return succeed("fairseq-train", *job.train_flags(data, folder), *NO_DROPOUT, *LENGTH, *OPTIMIZER, *precision)


@pytest.mark.parametrize(
    ("job", "flag"), rotated(JOBS, ("--fp16", "--bf16")), indirect=["job"], ids=lambda part: getattr(part, "name", part)
)
def test_half_precision_follows_full_precision(job, flag, in_full, data_of, tmp_path):
    dtype, error = {"--fp16": (torch.float16, 0.01), "--bf16": (torch.bfloat16, 0.05)}[flag]
    full, half = in_full(job), run_of(job, data_of(job), tmp_path, flag)
    assert sorted(half.updates) == list(range(1, 11))
    assert half.losses == pytest.approx(full.losses, rel=error)
    assert half.losses[-1] < 0.95 * half.losses[0]
    for number, logged in half.updates.items():
        assert logged["gnorm"] == pytest.approx(full.updates[number]["gnorm"], rel=0.05), number

    saved = sorted(tmp_path.glob("checkpoint_*_*.pt"), key=updates_of)
    first, last = load(saved[0])["model"], load(saved[-1])["model"]
    for name, before in first.items():
        if name.endswith((".version", "._float_tensor")):
            continue
        assert torch.equal(before, before.to(dtype).float()), name  # fairseq saves half precision as fp32
        # the softmax does not see the biases of the keys: they have no gradient
        assert not torch.equal(before, last[name]) or name.endswith("k_proj.bias"), name


def updates_of(path):
    return int(path.stem.split("_")[-1])
