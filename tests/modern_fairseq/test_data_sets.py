"""Data sets whose files were cut off or changed."""

import struct
import warnings

import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

from fairseq_residuals_errors import UserError

SENTENCES = [torch.arange(n) for n in (3, 5, 2)]


@pytest.fixture
def path(tmp_path):
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "train.bin"))
    for sentence in SENTENCES:
        builder.add_item(sentence)
    builder.finalize(str(tmp_path / "train.idx"))
    return tmp_path / "train"


def test_whole_ones_are_as_they_were(path):
    dataset = MMapIndexedDataset(str(path))
    assert len(dataset) == 3
    assert all(torch.equal(found, wanted) for found, wanted in zip(dataset, SENTENCES, strict=True))


def test_empty_ones_too(tmp_path):
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "train.bin"))
    builder.add_item(torch.arange(0))
    builder.finalize(str(tmp_path / "train.idx"))
    (tmp_path / "train.bin").write_bytes(b"\0")  # NumPy maps no file without a byte
    assert MMapIndexedDataset(str(tmp_path / "train"))[0].tolist() == []


@pytest.mark.filterwarnings("error")  # such as of an exception while an object is freed
@pytest.mark.parametrize("kept", (0, 10, 25, 30, -1))
@pytest.mark.parametrize("ending", (".idx", ".bin"))
def test_the_file_is_named(path, ending, kept):
    file = path.with_suffix(ending)
    file.write_bytes(file.read_bytes()[:kept])
    with warnings.catch_warnings(), pytest.raises(UserError, match=f"{file} is cut off"):
        MMapIndexedDataset(str(path))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("place", "code", "value", "sentence"),
    [
        (0, "<B", 0, r"train\.idx is no index"),
        (9, "<Q", 2, r"train\.idx is no index"),
        (17, "<B", 99, r"train\.idx is no index"),
        (26 + 4, "<i", 2**31 - 1, r"train\.bin is cut off, or .*train\.idx is damaged"),
        (26 + 4, "<i", -1, r"train\.idx has sizes or places that are negative"),
        (26 + 12 + 8, "<q", 2**62, r"train\.bin is cut off, or .*train\.idx is damaged"),
        (26 + 12 + 8, "<q", -8, r"train\.idx has sizes or places that are negative"),
    ],
)
def test_an_index_that_says_what_cannot_be(path, place, code, value, sentence):
    """In the middle, where the last sentence is as it was."""
    content = bytearray(path.with_suffix(".idx").read_bytes())
    struct.pack_into(code, content, place, value)
    path.with_suffix(".idx").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        MMapIndexedDataset(str(path))
