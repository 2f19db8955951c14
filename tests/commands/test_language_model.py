"""fairseq-eval-lm, -generate and -interactive on language models, plain and adaptive."""

from __future__ import annotations

import re

import pytest
from running import succeed
from tiny_jobs import LANGUAGE_MODEL, UPDATES, WIKI103


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
