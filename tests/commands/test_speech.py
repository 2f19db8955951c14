"""fairseq-generate, -interactive on speech models: wav files on the fly, and features in a zip."""

from __future__ import annotations

import dataclasses

import pytest
import tiny_data
from running import load, succeed
from tiny_jobs import ADAM, SPEECH

ZIPPED = dataclasses.replace(
    SPEECH, name="zipped_features", arch="s2t_transformer_post_ln_s", prepare=tiny_data.write_zipped_features
)


@pytest.fixture(scope="module")
def data(data_of):
    return data_of(SPEECH)


@pytest.fixture(scope="module")
def checkpoint(trained):
    return trained(SPEECH)[0] / "checkpoint_last.pt"


SEARCH = ["--beam", "3", "--max-len-b", "8"]


@pytest.fixture(scope="module")
def generated(data, checkpoint, once):
    """Beam search over the test set, one utterance at a time."""
    flags = [*SPEECH.use_flags(data, checkpoint, batch_size=1), *SEARCH, "--gen-subset", "test"]
    return once("recognised", lambda _: succeed("fairseq-generate", *flags))[1]


def test_interactive_recognises_files_as_generate_does(data, checkpoint, generated):
    """Paths on standard input, one by one: the same words and scores."""
    flags = [*SPEECH.use_flags(data, checkpoint, batch_size=None), *SEARCH]
    paths = "".join(f"{data / 'wav' / f'test{i}.wav'}\n" for i in range(tiny_data.SIZES["test"]))
    found = succeed("fairseq-interactive", *flags, stdin=paths).hypotheses()["H"]
    expected = generated.hypotheses()["H"]
    assert set(found) == set(expected)
    for i, (score, words) in expected.items():
        assert found[i][1] == words
        assert float(found[i][0]) == pytest.approx(float(score), abs=1e-5)


def test_features_in_a_zip_train_a_post_ln_model(data_of, tmp_path):
    """Masked at random; no norm on top of either stack, although fairseq's own speech models force Pre-LN."""
    data = data_of(ZIPPED)
    run = succeed("fairseq-train", *ZIPPED.train_flags(data, tmp_path), *ADAM, "--max-update", 22)
    assert sum(run.losses[-4:]) < 0.9 * sum(run.losses[:4])
    assert "encoder: 2 layers wired by post_ln" in run.out
    assert not {
        k
        for k in load(tmp_path / "checkpoint_last.pt")["model"]
        if k.startswith(("encoder.layer_norm", "decoder.layer_norm"))
    }
    use = ZIPPED.use_flags(data, tmp_path / "checkpoint_last.pt")
    found = succeed("fairseq-generate", *use, "--gen-subset", "test", "--beam", 1, "--max-len-b", 8).hypotheses()
    assert len(found["H"]) == tiny_data.SIZES["test"]
