"""fairseq-validate and ``fairseq-residuals average`` for each task."""

from __future__ import annotations

import math
import re

import pytest
from running import succeed
from tiny_jobs import UPDATES


def validated(job, data, checkpoint, *more):
    """What fairseq-validate logs about the valid set."""
    flags = [*job.use_flags(data, checkpoint), *more]
    return succeed("fairseq-validate", *flags, "--valid-subset", "valid", "--log-format", "json").records("valid")[-1]


def test_validate_gives_the_loss_that_training_logged(job, data_of, trained):
    folder, run = trained(job)
    logged = run.records("valid")[-1]
    assert logged["valid_num_updates"] == UPDATES
    # as many processes as there are GPUs, unless told otherwise
    found = validated(job, data_of(job), folder / "checkpoint_last.pt", "--distributed-world-size", 2)
    assert found["valid_loss"] == pytest.approx(logged["valid_loss"], abs=0.0015)
    assert found["valid_ppl"] == pytest.approx(logged["valid_ppl"], abs=0.015)


def test_an_average_of_the_last_updates_is_usable(job, data_of, trained, tmp_path):
    """tests/test_average.py has its numbers."""
    folder, _ = trained(job)
    output = tmp_path / "average.pt"
    flags = ["--inputs", folder, "--num-update-checkpoints", 3, "--output", output]
    run = succeed("fairseq-residuals", "average", *flags)
    first, _, _ = re.findall(r"checkpoint_\d+_(\d+)\.pt", run.out)
    assert int(first) == UPDATES
    loss = validated(job, data_of(job), output)["valid_loss"]
    assert math.isfinite(loss)
    assert loss != validated(job, data_of(job), folder / "checkpoint_last.pt")["valid_loss"]
