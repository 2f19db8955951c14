"""Batches to train on: synthetic sequences to copy, reverse or sort, or a binarized corpus."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_residuals.lab.look.batches import SPECIAL
from fairseq_residuals.wirings.core.errors import UserError

Sample = dict[str, Any]
"""A batch as fairseq's data sets make it."""
GAMES = ("copy", "reverse", "sort")
VALID_BATCHES = 16
VALID_SEED = 10_000
"""Far from the seeds of training."""


class SyntheticSequences:
    """Sequences of words, some much more frequent than others, as in a language; the target is made from them."""

    def __init__(self, args: Namespace, words: Dictionary) -> None:
        self.args, self.words = args, words
        ranks = torch.arange(1, len(words) - SPECIAL + 1)
        self.frequencies = 1.0 / ranks

    def train(self, seed: int) -> Iterator[Sample]:
        """Yield training batches without end, the same for every model."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield self._batch(generator)

    def valid(self) -> list[Sample]:
        generator = torch.Generator().manual_seed(VALID_SEED)
        return [self._batch(generator) for _ in range(VALID_BATCHES)]

    def _batch(self, generator: torch.Generator) -> Sample:
        longest = self.args.tokens
        lengths = torch.randint(max(1, longest // 2), longest + 1, (self.args.sentences,), generator=generator)
        draws = [torch.multinomial(self.frequencies, int(n), True, generator=generator) + SPECIAL for n in lengths]
        end = torch.tensor([self.words.eos()])
        sources = [torch.cat([x, end]) for x in draws]
        targets = [torch.cat([self._answer(x), end]) for x in draws]
        # as fairseq pads: sources on the left, targets on the right
        source = self._pad(sources, left=True)
        target = self._pad(targets)
        previous = self._pad([torch.cat([end, x[:-1]]) for x in targets])
        inputs = {"src_tokens": source, "src_lengths": lengths + 1, "prev_output_tokens": previous}
        return {"net_input": inputs, "target": target, "ntokens": int(lengths.sum()) + len(lengths)}

    def _answer(self, x: Tensor) -> Tensor:
        return {"copy": lambda: x, "reverse": lambda: x.flip(0), "sort": lambda: x.sort()[0]}[self.args.game]()

    def _pad(self, rows: list[Tensor], left: bool = False) -> Tensor:
        side = "left" if left else "right"
        return torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self.words.pad(), padding_side=side
        )


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


def count_targets(samples: Sequence[Sample], padding: int) -> Counter[int]:
    """Return how often each token is a target."""
    counts: Counter[int] = Counter()
    for sample in samples:
        target = sample["target"]
        counts.update(target[target.ne(padding)].tolist())
    return counts
