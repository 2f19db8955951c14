"""Packed batches: the sentences of a batch end to end, made from the batch that fairseq makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset
from torch import Tensor

from fairseq_residuals.wirings.core.errors import UserError

PADDED = "padded"
"""Key under which a packed batch holds the batch that it was made of, as :class:`Padded`."""

MULTIPLE = 64
"""Divisor of the positions in rows of a fixed length: products of such sizes suit a GPU."""


@dataclass(frozen=True)
class RowSize:
    """Size of the rows of one side of every batch, so that all have one shape."""

    tokens: int
    """Positions, those of the fillers among them."""
    longest: int
    """Positions of the longest sentence."""


@dataclass(frozen=True)
class Padded:
    """A batch that a packed one was made of.

    No update but the one before which Admin measures needs it, so it is no dictionary, in which fairseq would move
    every tensor to the device, and convert it.
    """

    batch: dict[str, Any]


@dataclass(frozen=True)
class FixedShape:
    """The one shape of all batches; sentences of padding fill them up."""

    sides: tuple[RowSize, ...]
    """Row sizes of the source where there is one, and of the target."""
    sentences: int
    """Sentences, those of the fillers among them."""
    fillers: int

    @staticmethod
    def of(lengths: np.ndarray, batches: Sequence[Any]) -> FixedShape:
        """Return the smallest shape that has room for all batches.

        Args:
            lengths: (examples, sides), of the sentences.
            batches: which examples each holds.
        """
        most = np.max([lengths[batch].sum(0, np.int64) for batch in batches], 0)
        longest = lengths[np.concatenate([np.asarray(batch) for batch in batches])].max(0)
        # a filler is no longer than the longest sentence, and has a position on each side, to attend to and from
        fillers = int(np.max(-(-most // longest))) + 1
        tokens = -(-(most + fillers) // MULTIPLE) * MULTIPLE
        sides = tuple(RowSize(int(n), max(int(m), -(-int(n) // fillers))) for n, m in zip(tokens, longest, strict=True))
        return FixedShape(sides, max(map(len, batches)) + fillers, fillers)


def pack_batch(batch: dict[str, Any], pad: int, shape: FixedShape | None = None) -> dict[str, Any]:
    """Return a batch of fairseq's in rows: words (1, total), with ``*_bounds`` and ``*_longest`` in ``net_input``.

    The batch itself is in it, too, under :data:`PADDED`.

    Args:
        batch: with padding on any side. Its target is packed; so is its source, if that is words too.
        pad: the word that pads sentences.
        shape: to bring it to; a batch that turns out larger, as its dataset adds symbols, gets a larger one.

    Raises:
        UserError: the batch has no target, or several, or words to predict where the decoder is fed padding.
    """
    if not isinstance(target := batch.get("target"), Tensor):
        raise UserError("--packed is for batches with one target; leave it out with several, or none")
    inputs = dict(batch["net_input"])
    previous = "prev_output_tokens" if "prev_output_tokens" in inputs else "src_tokens"
    real = inputs[previous].ne(pad)
    if real.shape != target.shape or (target.ne(pad) & ~real).any():
        raise UserError("--packed is for targets that are as long as what the decoder is fed; leave it out")
    pairs = previous != "src_tokens" and not inputs["src_tokens"].is_floating_point()
    if pairs:
        source = inputs["src_tokens"]
        row = _Row(source.ne(pad), shape, 0)
        inputs |= {"src_tokens": row.of(source, pad), "source_bounds": row.bounds, "source_longest": row.longest}
        inputs["src_lengths"] = row.bounds.diff().long()
    row = _Row(real, shape, -1)
    inputs |= {previous: row.of(inputs[previous], pad), "target_bounds": row.bounds, "target_longest": row.longest}
    if previous == "src_tokens":
        inputs["src_lengths"] = row.bounds.diff().long()
    return batch | {"net_input": inputs, "target": row.of(target, pad), PADDED: Padded(batch)}


class _Row:
    """Places of the words of one side."""

    def __init__(self, real: Tensor, shape: FixedShape | None, side: int) -> None:
        self.real = real
        lengths = real.sum(1).tolist()
        self.fill, self.longest = 0, max(lengths)
        empty = 0
        if shape is not None:
            size, n = shape.sides[side], shape.fillers
            least = sum(lengths) + n
            total = size.tokens if least <= size.tokens else -(-least // MULTIPLE) * MULTIPLE
            self.fill = total - sum(lengths)
            fillers = [self.fill // n + (i < self.fill % n) for i in range(n)]
            self.longest = max(size.longest, self.longest, fillers[0])
            empty = shape.sentences - len(lengths) - n
            lengths += fillers
        self.bounds = torch.tensor([0, *accumulate(lengths + [0] * empty)], dtype=torch.int32)

    def of(self, words: Tensor, pad: int) -> Tensor:
        """(B, T) -> (1, total)"""
        return torch.nn.functional.pad(words[self.real], (0, self.fill), value=pad)[None]


class PackedDataset(BaseWrapperDataset):  # type: ignore[misc]
    """A dataset whose batches are packed."""

    def __init__(self, dataset: FairseqDataset, pad: int, *, full: bool, one_shape: bool) -> None:
        """Wrap a dataset.

        Args:
            pad: the word that pads sentences.
            full: count words and not padding against the size of a batch, whose sentences then are of any length.
            one_shape: bring all batches to one shape.
        """
        super().__init__(dataset)
        self.pad, self.full, self.one_shape = pad, full, one_shape
        self.shape: FixedShape | None = None

    def collater(self, samples: list[Any]) -> dict[str, Any]:
        """Return the batch of some examples; empty without any."""
        batch = super().collater(samples)
        return pack_batch(batch, self.pad, self.shape) if batch else batch

    def batch_by_size(
        self,
        indices: Any,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> Any:
        """Return which examples each batch holds."""
        if self.full and max_tokens:
            batches: Any = full_batches(self._lengths(), indices, max_tokens, max_sentences)
        else:
            batches = super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple)
        if self.one_shape:
            self.shape = FixedShape.of(self._lengths(), batches)
        return batches

    def _lengths(self) -> np.ndarray:
        """(examples, sides)"""
        return np.asarray(self.dataset.sizes).reshape(len(self.dataset), -1)


def full_batches(
    lengths: np.ndarray, indices: np.ndarray, max_tokens: int, max_sentences: int | None
) -> list[np.ndarray]:
    """Return batches with at most ``max_tokens`` words on each side, filled one after the other.

    Sentences of all lengths are mixed, since without padding there is nothing to gain from equal ones, and numbers of
    sentences then differ little.

    Args:
        lengths: (examples, sides), of the sentences.
        indices: of the examples to take. One longer than a batch has a batch of its own.
        max_sentences: of a batch; None: any.
    """
    mixed = np.random.default_rng(len(indices)).permutation(indices)
    batches: list[list[int]] = []
    words = np.zeros(lengths.shape[1], dtype=np.int64)
    for index in mixed.tolist():
        words += lengths[index]
        if not batches or words.max() > max_tokens or len(batches[-1]) == max_sentences:
            batches.append([])
            words = lengths[index].astype(np.int64)
        batches[-1].append(index)
    return [np.array(batch) for batch in batches]
