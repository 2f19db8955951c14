"""Scoring, logging, tasks in YAML, and batches, whose loading does not outlive its process."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import subprocess
import sys
import threading
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary, FairseqDataset, iterators
from fairseq.dataclass.configs import EMAConfig
from fairseq.models.ema.ema import EMA
from omegaconf import OmegaConf
from running import argv_of, execute
from tiny import build_stock

from fairseq_residuals_errors import UserError


def test_fairseq_score_with_sacrebleu(tmp_path: Path) -> None:
    hypotheses = ["the cat sat on the mat", "a dog ate the other bone today"]
    references = ["the cat sat on a mat", "the dog ate the other bone today"]
    for name, lines in (("sys", hypotheses), ("ref", references)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
    command = [sys.executable, "-m", "fairseq_cli.score", "--ref", str(tmp_path / "ref"), "--sacrebleu"]
    named = subprocess.run([*command, "--sys", str(tmp_path / "sys")], capture_output=True, text=True, check=True)
    flags = argv_of("fairseq-score", "--ref", tmp_path / "ref", "--sacrebleu")
    piped = execute(flags, stdin=(tmp_path / "sys").read_text())
    for out, err in ((named.stdout, named.stderr), (piped.out, piped.err)):
        assert f"BLEU = {expected:.2f} " in out
        assert err == ""
    empty = execute(flags)
    assert empty.status == 1
    assert empty.err == "fairseq-score: error: <stdin> is empty: one sentence a line is needed\n"


@pytest.mark.parametrize("more", [(), ("--sentence-bleu",), ("--sacrebleu",)])
@pytest.mark.parametrize("kind", ["files", "stdin", "a pipe"])
def test_texts_of_different_lengths_are_not_scored(more: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("one\ntwo\n")
    if kind == "a pipe":
        os.mkfifo(tmp_path / "ref")
        threading.Thread(target=(tmp_path / "ref").write_text, args=("one\n",), daemon=True).start()
    else:
        (tmp_path / "ref").write_text("one\n")
    argv = ["--sys", "-" if kind == "stdin" else "out", "--ref", "ref", *more]
    run = execute(argv_of("fairseq-score", *argv), stdin="one\ntwo\n", cwd=tmp_path)
    assert run.status == 1 and run.err.startswith(f"fairseq-score: error: {argv[1]} has 2 lines and ref 1")


def test_importing_fairseq_leaves_logging_alone() -> None:
    code = "import logging, fairseq.tasks; print(logging.getLogger().handlers, logging.getLogger().level)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"[] {logging.WARNING}\n"
    assert run.stderr == ""


def speech_task(folder: Path, **keys: Any) -> Any:
    (folder / "dict.txt").write_text("a 1\nb 1\n")
    (folder / "config.yaml").write_text("vocab_filename: dict.txt\ninput_feat_per_channel: 8\n")
    root = OmegaConf.create({"common": {"seed": 5}, "task": {"_name": "speech_to_text", "data": str(folder), **keys}})
    OmegaConf.set_struct(root, True)
    return tasks.setup_task(root.task)


def test_a_task_without_dataclass_is_set_up_from_yaml(tmp_path: Path) -> None:
    task = speech_task(tmp_path, max_source_positions=99)
    assert len(task.target_dictionary) == 6
    assert (task.args.max_source_positions, task.args.max_target_positions) == (99, 1024)
    assert (task.args.config_yaml, task.args.seed) == ("config.yaml", 5)


def test_its_unknown_or_missing_keys_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key max_positions under task speech_to_text; valid: .*max_source"):
        speech_task(tmp_path, max_positions=3)
    cfg = OmegaConf.create({"task": {"_name": "speech_to_text"}})
    with pytest.raises(UserError, match=r"task\.data is missing"):
        tasks.setup_task(cfg.task)


def batches_of(epochs: Any, epoch: int, shuffle: bool, offset: int = 0) -> list[int]:
    epochs.epoch = epoch
    return [int(batch) for batch in epochs._get_iterator_for_epoch(epoch, shuffle, offset=offset)]


def epochs_of(number: int = 9, **settings: Any) -> Any:
    data = torch.utils.data.TensorDataset(torch.arange(number))
    batches = [[i] for i in range(number)]
    return iterators.EpochBatchIterator(data, lambda items: items[0][0] if items else None, batches, seed=1, **settings)


@pytest.mark.parametrize("task", ["denoising", "multilingual_denoising"])
def test_bart_is_trained_to_denoise(task: str) -> None:
    flags = ["data", "--task", task, "--arch", "bart_base", "--max-source-positions", "7", "--tokens-per-sample", "5"]
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    assert (args.max_source_positions, args.max_target_positions, args.encoder_layers) == (7, 1024, 6)


def test_bart_is_fine_tuned_to_translate() -> None:
    words = Dictionary()
    task = tasks.TASK_REGISTRY["translation_from_pretrained_bart"]
    parser = argparse.ArgumentParser()
    task.add_args(parser)
    flags = ["folder", "--langs", "de,en", "-s", "de", "-t", "en"]
    task = task(argparse.Namespace(**vars(parser.parse_args(flags)), dataset_impl="mmap"), words, words)
    with pytest.raises(FileNotFoundError, match=r"Dataset not found: train \(folder\)"):
        task.load_dataset("train")


def test_a_resumed_epoch_skips_its_last_batch_alone() -> None:
    epochs = epochs_of(skip_remainder_batch=True)
    whole = batches_of(epochs, 1, True)
    assert len(whole) == 8
    assert all(batches_of(epochs, 1, True, offset) == whole[offset:] for offset in range(1, 8))


@pytest.mark.parametrize("size", [9, 3, 30])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4), (3, 2), (4, 1)])
def test_another_number_of_processes_goes_on_behind_what_was_trained_on(before: int, after: int, size: int) -> None:
    """Each process has consumed two of nine batches, now of ``size``; one may come again if numbers do not divide."""
    order = batches_of(epochs_of(size), 1, True)
    epochs = epochs_of(num_shards=before)
    batches = epochs.next_epoch_itr()
    next(batches), next(batches)
    position, left = epochs.state_dict(), []
    for process in range(after):
        resumed = epochs_of(size, num_shards=after, shard_id=process)
        resumed.load_state_dict(position)
        left.append(list(resumed.next_epoch_itr()))
    taken_up = [int(batch) for step in itertools.zip_longest(*left) for batch in step if batch is not None]
    assert taken_up == order[2 * before * size // 9 // after * after :]


def test_shuffling_begins_after_the_curriculum() -> None:
    epochs = epochs_of(reuse_dataloader=True)
    assert batches_of(epochs, 1, False) == [*range(9)]
    assert batches_of(epochs, 2, True) == batches_of(epochs_of(), 2, True) != [*range(9)]


class Epochs(FairseqDataset):
    """One item: the epoch."""

    def __getitem__(self, index: int) -> int:
        return self.epoch

    def __len__(self) -> int:
        return 1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("workers", [0, 1])
def test_processes_that_load_data_know_the_epoch(workers: int) -> None:
    epochs = iterators.EpochBatchIterator(Epochs(), itemgetter(0), [[0]], num_workers=workers, reuse_dataloader=True)
    assert [next(epochs.next_epoch_itr()) for _ in range(3)] == [1, 2, 3] and len(epochs.dataset) == 1


@pytest.mark.parametrize(
    ("task", "flags"),
    [("translation", ("--share-all-embeddings",)), ("language_modeling", ("--adaptive-softmax-cutoff", "10"))],
)
def test_every_parameter_is_averaged_once(task: str, flags: tuple[str, ...]) -> None:
    """Also one of many names, and the norm on top of a stack."""
    model = build_stock(task, *flags, normalize_before=True)
    expected = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    average = EMA(model, EMAConfig(ema_decay=0.9))
    for _ in range(3):
        for name, parameter in model.named_parameters():
            parameter.data.add_(1.0)
            expected[name] = 0.9 * expected[name] + 0.1 * parameter.detach()
        average.step(model)
    torch.testing.assert_close(dict(average.get_model().named_parameters()), expected)


@pytest.mark.parametrize(("dtype", "decay"), [(torch.float16, 0.999), (torch.bfloat16, 0.99)])
def test_an_average_that_half_precision_rounds_to_itself_is_refused(dtype: torch.dtype, decay: float) -> None:
    model = torch.nn.Linear(8, 8).to(dtype)
    with pytest.raises(UserError, match=r"never moves with --ema-decay 0\.9999: add --ema-fp32"):
        EMA(model, EMAConfig())
    EMA(model, EMAConfig(ema_fp32=True)), EMA(model, EMAConfig(ema_decay=decay))


LOADING = """
import torch
from fairseq.data.iterators import BufferedIterator
class Source:
    def __len__(self): return 10**6
    def __iter__(self):
        x = torch.randn(200, 200)
        while True:
            for _ in range(20): y = x @ x  # inside PyTorch nearly all the time
            yield y
batches = BufferedIterator({size}, Source())
next(batches)
"""


@pytest.mark.parametrize("size", (1, 100_000), ids=("waiting for a place", "loading"))
def test_background_loading_does_not_abort_the_end(size: int) -> None:
    run = subprocess.run([sys.executable, "-c", LOADING.format(size=size)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
