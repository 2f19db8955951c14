"""The effective batch, whatever the number of devices."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data.data_utils import batch_by_size
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from hypothesis import given
from hypothesis import strategies as st
from recipe_files import job_of

from fairseq_residuals.lab.recipes.effective_batch import _sizes, share_out, share_out_among
from fairseq_residuals.wirings.core.errors import UserError


@pytest.mark.parametrize(
    ("devices", "update_freq", "max_tokens"),
    [(1, 128, 3584), (4, 32, 3584), (8, 16, 3584), (128, 1, 3584), (256, 1, 1792)],
)
def test_batch_of_b2t_on_any_number_of_gpus(devices: int, update_freq: int, max_tokens: int) -> None:
    """4 x 32 and 8 x 16 are what its READMEs had."""
    batch = share_out(3584 * 128, devices, at_most=3584)
    assert (batch.update_freq, batch.max_tokens) == (update_freq, max_tokens)
    assert batch.tokens == 458_752
    assert "(the recipe" not in str(batch)


def test_a_remainder_makes_passes_smaller_and_is_said() -> None:
    batch = share_out(458_752, devices=24, at_most=3584)
    assert (batch.update_freq, batch.max_tokens) == (6, 3185)
    assert str(batch) == "3185 tokens x 6 passes x 24 devices = 458,640 (the recipe: 458,752)"


@given(st.integers(1, 2_000_000), st.integers(1, 300), st.integers(2, 50_000))
def test_never_more_than_asked_for_and_hardly_less(wanted: int, devices: int, at_most: int) -> None:
    if wanted < devices:
        with pytest.raises(UserError):
            share_out(wanted, devices, at_most)
        return
    batch = share_out(wanted, devices, at_most)
    assert 1 <= batch.max_tokens <= at_most
    assert wanted - devices * batch.update_freq < batch.tokens <= wanted
    # one pass fewer would not do
    assert devices * at_most * (batch.update_freq - 1) < wanted


def test_blocks_of_a_language_model_must_fit_into_a_pass() -> None:
    assert share_out(131_072, 8, 1024, at_least=1024).update_freq == 16
    for wanted, block, most in ((131_072, 1024, 128), (100, 64, 1), (131_072, 1, 131_072)):
        with pytest.raises(UserError, match=rf"sample of {block} tokens on each of .*: at most {most} can share them"):
            share_out(wanted, most + 1, 2 * block, block)
        assert share_out(wanted, most, 2 * block, block).update_freq == 1
    with pytest.raises(UserError, match="at least as many"):
        share_out(131_072, 8, 512, at_least=1024)


@pytest.mark.parametrize(
    ("devices", "at_most", "expected"),
    [(5, 2048, (1024, 25)), (1, 1500, (1024, 128)), (3, 4096, (3072, 14)), (1, 30 * 1024, (16 * 1024, 8))],
)
def test_passes_of_a_language_model_are_whole_blocks(devices: int, at_most: int, expected: tuple[int, int]) -> None:
    """fairseq takes no part of a block, and of more than eight a multiple of eight."""
    batch = share_out(131_072, devices, at_most, at_least=1024)
    assert (batch.max_tokens, batch.update_freq) == expected
    blocks = batch_by_size(np.arange(999), lambda _: 1024, max_tokens=batch.max_tokens, required_batch_size_multiple=8)[
        0
    ]
    assert len(blocks) * 1024 == batch.max_tokens


def test_less_memory_means_more_passes() -> None:
    job = job_of("b2t/table2/100l_b2t", gpus=8, max_tokens=1024)
    assert (job.batch.update_freq, job.batch.max_tokens) == (56, 1024)
    assert job.config.optimization.update_freq == [56]
    assert job.batch.tokens == 458_752


def test_block_size_is_the_recipes() -> None:
    """A name is before what cannot be shared out."""
    said = r"^b2t/table4/6l_b2t: .*less than one sample of 1024 tokens on each of 200 devices: at most \d+ can"
    with pytest.raises(UserError, match=said):
        _ = job_of("b2t/table4/6l_b2t", gpus=200).batch
    assert job_of("b2t/table4/16l_b2t", gpus=24).batch.update_freq == 8


def prepared(folder: Path, lengths: dict[str, list[int]]) -> None:
    """Write the binarized sides of a corpus, with samples of these lengths."""
    folder.mkdir(parents=True)
    for name, sizes in lengths.items():
        builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"), dtype=np.int32)
        for size in sizes:
            builder.add_item(torch.full((size,), 4))
        builder.finalize(str(folder / f"{name}.idx"))


def test_fewer_devices_where_the_longest_sample_does_not_fit(tmp_path: Path) -> None:
    """The exercise has 1024 tokens an update, and its development set a sentence of 133 subwords; sentences of more
    than 1024 are left out by fairseq, and generation alone reads the test set."""
    job = job_of("joeynmt/perplexity/baseline", gpus=8, data=tmp_path)
    sizes = {"train": [5, 1500], "valid": [133], "test": [700]}
    prepared(
        job.data, {f"{split}.de-en.{lang}": sizes[split] for split, lang in itertools.product(sizes, ("de", "en"))}
    )
    assert (job.batch.devices, job.batch.max_tokens, job.batch.update_freq) == (7, 146, 1)
    assert str(job.batch).endswith("; 1 device stays idle, for one sample has 133 tokens")
    assert job.config.distributed_training.distributed_world_size == 7
    # with 128 tokens a device fairseq refuses the sentence
    with pytest.raises(AssertionError, match="should not exceed max_tokens=128"):
        batch_by_size(np.arange(1), lambda _: 133, max_tokens=1024 // 8)
    with pytest.raises(UserError, match="one sample of this corpus has 133 tokens"):
        share_out_among(1024, 1, 100, 133)


def test_lengths_outlive_the_data_set_that_they_are_read_from(tmp_path: Path) -> None:
    """fairseq closes the file of a data set that is freed, and reading on ended runs with --jobs by a segmentation
    fault: fairseq's cache keeps the last eight alive, until another thread has read as many."""
    prepared(tmp_path / "data", {"train.de-en.de": [5, 7], "train.de-en.en": [6, 8]})
    found = list(_sizes(tmp_path / "data", ["train"]))
    assert all(sizes.flags.owndata for sizes in found)
    assert [sizes.tolist() for sizes in found] == [[5, 7], [6, 8]]


def test_frames_of_speech_are_counted_too(tmp_path: Path) -> None:
    job = job_of("b2t/table5/6l_b2t", gpus=8, data=tmp_path, max_tokens=2000)
    job.data.mkdir(parents=True)
    (job.data / "dev-clean.tsv").write_text('id\taudio\tn_frames\ttgt_text\tspeaker\na\ta.npy\t3000\t"so\t1\n')
    with pytest.raises(UserError, match="one sample of this corpus has 3000 tokens"):
        _ = job.batch
