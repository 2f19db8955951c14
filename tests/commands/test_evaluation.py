"""fairseq-validate and ``fairseq-residuals average`` for each task, and what scores and continues language models."""

from __future__ import annotations

import math
import re

import pytest
from running import succeed
from tiny_jobs import LANGUAGE_MODEL, UPDATES, WIKI103


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


def evaluated(job, data, checkpoint, *flags):
    """Loss in bits per word and perplexity by fairseq-eval-lm on the valid set."""
    run = succeed("fairseq-eval-lm", *job.use_flags(data, checkpoint), "--gen-subset", "valid", *flags)
    loss, perplexity = re.search(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", run.out + run.err).groups()
    return float(loss), float(perplexity), run


@pytest.fixture(params=[LANGUAGE_MODEL, WIKI103], ids=lambda job: job.name)
def language_model(request):
    return request.param


def test_eval_lm_gives_the_valid_loss_of_training(language_model, data_of, trained):
    folder, run = trained(language_model)
    # as many processes as there are GPUs, unless told otherwise
    flags = ("--distributed-world-size", 2)
    loss, perplexity, _ = evaluated(language_model, data_of(language_model), folder / "checkpoint_last.pt", *flags)
    logged = run.records("valid")[-1]
    assert logged["valid_num_updates"] == UPDATES
    assert loss == pytest.approx(logged["valid_loss"], abs=0.0015)
    assert perplexity == pytest.approx(2**loss, abs=0.01)


def test_generate_and_interactive_continue_a_prefix(language_model, data_of, trained):
    """Both score the same continuation of the same words alike."""
    data = data_of(language_model)
    checkpoint = trained(language_model)[0] / "checkpoint_last.pt"
    alone, flags = (language_model.use_flags(data, checkpoint, batch_size) for batch_size in (None, 4))
    search = ["--beam", 2, "--max-len-b", 20, "--max-len-a", 0]
    prefix = "ka lo mi nu"
    found = succeed("fairseq-interactive", *alone, *search, stdin=prefix + "\n").hypotheses()["H"][0]
    assert found[1].startswith(prefix)
    assert len(found[1].split()) > len(prefix.split())
    assert float(found[0]) < 0

    breaks = ["--sample-break-mode", "eos", "--gen-subset", "test", "--prefix-size", 3]
    generated = succeed("fairseq-generate", *flags, *search, *breaks).hypotheses()
    text = [line.split() for line in (data / "text" / "test").read_text().splitlines()]
    assert len(generated["H"]) == len(text)
    for i, (_, words) in generated["H"].items():
        assert words.split()[:3] == text[i][:3]
