"""The longest sample of a prepared corpus: fairseq stops at one that does not fit into a pass."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig


def longest_sample(data: Path, config: DictConfig) -> int:
    """Return the tokens (in speech: frames) of the longest sample of training and validation; 0 where none is there.

    Args:
        data: the binarized corpus.
        config: a composed configuration; samples of more positions than its task takes are left out by fairseq.
    """
    task, limit = config.task, longest_accepted(config)
    subsets = f"{config.dataset.train_subset},{config.dataset.valid_subset}".split(",")
    longest = 0
    for sizes in _sizes(data, subsets):
        fitting = np.minimum(sizes, limit) if task.get("truncate_source") else sizes[sizes <= limit]
        longest = max(longest, int(fitting.max(initial=0)))
    return longest


def longest_accepted(config: DictConfig) -> int:
    """Return the positions of the longest sample that the task of a composed configuration takes."""
    task = config.task
    # the defaults of fairseq's tasks, of which that of speech has no dataclass to name them
    return task.get("max_source_positions") or (6000 if task._name == "speech_to_text" else 1024)


def _sizes(data: Path, subsets: list[str]) -> Iterator[Any]:
    from fairseq.data.indexed_dataset import infer_dataset_impl, make_dataset

    for subset in subsets:
        for index in sorted(data.glob(f"{subset}.*.idx")):  # subset.pair.language
            path = str(index.with_suffix(""))
            samples = make_dataset(path, impl=infer_dataset_impl(path) or "cached", fix_lua_indexing=True)
            yield np.array(samples.sizes)  # a copy: the data set closes its file once it is freed, read or not
        manifest = data / f"{subset}.tsv"
        if manifest.is_file():
            with manifest.open(encoding="utf-8", newline="") as lines:
                rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
                yield np.array([int(row["n_frames"]) for row in rows])
