"""fairseq-preprocess, -generate, -interactive and -score on a translation model."""

from __future__ import annotations

import re

import pytest
import tiny_data
from running import succeed
from tiny_jobs import TRANSLATION


@pytest.fixture(scope="module")
def data(data_of):
    return data_of(TRANSLATION)


@pytest.fixture(scope="module")
def checkpoint(trained):
    return trained(TRANSLATION)[0] / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def generated(data, checkpoint, once):
    """Beam search over the test set, scored by fairseq's own BLEU."""
    flags = [*TRANSLATION.use_flags(data, checkpoint), "--beam", 3, "--gen-subset", "test"]
    return once("translated", lambda _: succeed("fairseq-generate", *flags))[1]


def test_interactive_translates_as_generate_does(data, checkpoint, generated):
    """The same sentences on standard input, one by one, so without padding: the same words and scores."""
    # as many processes as there are GPUs, unless told otherwise
    flags = [*TRANSLATION.use_flags(data, checkpoint, batch_size=None), "--distributed-world-size", 2]
    text = (data / "text" / "test.s").read_text()
    found = succeed("fairseq-interactive", *flags, "--beam", 3, stdin=text).hypotheses()
    expected = generated.hypotheses()
    assert set(found["H"]) == set(expected["H"])
    for i, (score, words) in expected["H"].items():
        assert found["H"][i][1] == words
        assert float(found["H"][i][0]) == pytest.approx(float(score), abs=1e-5)


def test_another_wiring_of_the_decoder_by_flags(data, tmp_path):
    """--residual overrides the architecture's variant, --decoder-residual that of the decoder."""
    wiring = [
        "--residual",
        "pre_ln",
        "--decoder-residual",
        "b2t",
        "--decoder-residual-args",
        "init_scale=0.5",
    ]
    train = [
        *TRANSLATION.train_flags(data, tmp_path),
        "--max-update",
        2,
        "--optimizer",
        "adam",
        "--lr",
        0.001,
    ]
    run = succeed("fairseq-train", *train, *wiring)
    assert re.search(r"encoder: 2 layers wired by pre_ln \(init=fairseq,init_scale=1,\S+,final_norm=true\)", run.out)
    assert re.search(r"decoder: 2 layers wired by b2t \(init=fairseq,init_scale=0.5,\S+\)", run.out)
    use = TRANSLATION.use_flags(data, tmp_path / "checkpoint_last.pt")
    out = succeed("fairseq-generate", *use, "--beam", 2, "--max-len-b", 10).hypotheses()
    assert len(out["H"]) == tiny_data.SIZES["test"]
