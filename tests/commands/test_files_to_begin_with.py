"""Models that begin with parameters from files, which their checkpoints then do without."""

from __future__ import annotations

import shutil

import pytest
import torch
from running import load, succeed
from tiny_data import WORDS
from tiny_jobs import ADAM, SPEECH, TRANSLATION

FREEZE = (*ADAM, "--lr", "1e-30", "--max-update", "1")


def parameters(folder):
    return load(folder / "checkpoint_last.pt")["model"]


@pytest.fixture
def embeddings(tmp_path):
    """A file of vectors as fairseq reads them."""
    path = tmp_path / "embeddings.txt"
    vectors = torch.arange(len(WORDS) * 16).view(-1, 16) / 1000
    lines = [" ".join([word, *(f"{x:.3f}" for x in row)]) for word, row in zip(WORDS, vectors.tolist(), strict=True)]
    path.write_text("\n".join([f"{len(WORDS)} 16", *lines]) + "\n")
    return path


def test_embeddings_are_read_once(data_of, embeddings, tmp_path):
    data = data_of(TRANSLATION)
    flags = [*TRANSLATION.train_flags(data, tmp_path / "save"), *FREEZE, "--encoder-embed-path", embeddings]
    succeed("fairseq-train", *flags)
    words = [line.split()[0] for line in (data / "dict.s.txt").read_text().splitlines()]
    row = 4 + words.index(WORDS[1])
    expected = torch.arange(16, 32) / 1000
    torch.testing.assert_close(parameters(tmp_path / "save")["encoder.embed_tokens.weight"][row], expected)
    embeddings.unlink()
    succeed("fairseq-generate", *TRANSLATION.use_flags(data, tmp_path / "save/checkpoint_last.pt"))


def test_a_pretrained_encoder_is_read_once(data_of, trained, tmp_path):
    data, pretrained = data_of(SPEECH), tmp_path / "pretrained.pt"
    shutil.copyfile(trained(SPEECH)[0] / "checkpoint_last.pt", pretrained)
    flags = [*SPEECH.train_flags(data, tmp_path / "save"), *FREEZE, "--load-pretrained-encoder-from", pretrained]
    succeed("fairseq-train", *flags)
    before, after = load(pretrained)["model"], parameters(tmp_path / "save")
    names = [name for name in before if name.startswith("encoder.") and name.endswith(".weight")]
    assert names
    for name in names:
        torch.testing.assert_close(after[name], before[name])
    pretrained.unlink()
    succeed("fairseq-generate", *SPEECH.use_flags(data, tmp_path / "save/checkpoint_last.pt"))
