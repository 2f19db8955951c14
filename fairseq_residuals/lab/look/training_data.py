"""Batches of a binarized corpus to train on."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from fairseq import utils

from fairseq_residuals.wirings.core.errors import UserError

Sample = dict[str, Any]
"""A batch as fairseq's data sets make it."""
VALID_BATCHES = 16
VALID_SEED = 10_000
"""Far from the seeds of training."""


class Corpus:
    """A binarized corpus of fairseq's translation task."""

    def __init__(self, args: Namespace, task: Any, model: Any) -> None:
        """Load the training split, and the validation split where one is named.

        Raises:
            UserError: there is no training split, or none of the name for validation.
        """
        self.args, self.task = args, task
        self.positions = utils.resolve_max_positions(task.max_positions(), model.max_positions())
        for split in ("train", args.split):
            try:
                task.load_dataset(split)
            except (FileNotFoundError, KeyError):
                raise UserError(f"{args.data} has no split {split}; fairseq-preprocess makes them") from None

    def train(self, seed: int) -> Iterator[Sample]:
        """Yield training batches without end, epoch after epoch."""
        batches = self._batches("train", seed)
        while True:
            yield from (sample for sample in batches.next_epoch_itr(shuffle=True) if sample)

    def valid(self, most: int | None = VALID_BATCHES) -> list[Sample]:
        """Return the first batches of the validation split, or all."""
        batches = self._batches(self.args.split, VALID_SEED).next_epoch_itr(shuffle=False)
        return list(itertools.islice((sample for sample in batches if sample), most))

    def _batches(self, split: str, seed: int) -> Any:
        return self.task.get_batch_iterator(
            self.task.dataset(split),
            max_sentences=self.args.sentences,
            max_positions=self.positions,
            ignore_invalid_inputs=True,
            seed=seed,
        )
