"""clean-corpus-n.perl: pairs that are empty, too long, or too unequal in length are dropped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fairseq_residuals.lab.data.parallel_map import lines_of
from fairseq_residuals.wirings.core.errors import UserError

LONGEST_WORD = 1000
"""Characters; what is longer is no word."""
TOO_LONG_WORD = re.compile(rf"[^\s|]{{{LONGEST_WORD + 1}}}")


@dataclass(frozen=True)
class Limits:
    """Words per side, both inclusive, and how many times as many words one side may have as the other (inclusive)."""

    shortest: int
    longest: int
    ratio: float = 9.0
    """Largest ratio of the words of the two sides, by default the script's."""


def keep(pairs: Iterable[tuple[str, ...]], limits: Limits) -> Iterator[tuple[str, ...]]:
    """Yield the pairs within the limits, with single blanks.

    As in the script, ``|`` is removed unless the first pair has one, which means that words have factors.

    Raises:
        UserError: words have factors and one of them is blank.
    """
    factored = None
    for number, pair in enumerate(pairs, 1):
        if factored is None:
            factored = any("|" in line for line in pair)
        sides = [(line if factored else line.replace("|", "")).split() for line in pair]
        counts = [len(words) for words in sides]
        if min(counts) < max(limits.shortest, 1) or max(counts) > limits.longest:
            continue
        if max(counts) / min(counts) > limits.ratio:
            continue
        texts = tuple(" ".join(words) for words in sides)
        if any(len(line) > LONGEST_WORD and TOO_LONG_WORD.search(line) for line in texts):
            continue
        if factored and any(re.search(r"[ |]\|", line) for line in texts):
            raise UserError(f"line {number} has a blank factor (words with | have factors if the first line has one)")
        yield texts


def zipped(paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of several files side by side.

    Raises:
        UserError: one has more lines than another.
    """
    for lines in itertools.zip_longest(*(lines_of(path) for path in paths)):
        if None in lines:
            raise UserError(f"{' and '.join(map(str, paths))} differ in their numbers of lines: they are no pair")
        yield lines


def check_parallel(paths: Sequence[Path]) -> None:
    """Check that all files have as many lines.

    Raises:
        UserError: one has another number than the first.
    """
    for _ in zipped(paths):
        pass


def _open(paths: Sequence[Path], opened: ExitStack) -> list[IO[str]]:
    return [opened.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]


def write(texts: Iterable[tuple[str, ...]], paths: Sequence[Path]) -> None:
    """Write each tuple's lines to the files of ``paths``."""
    with ExitStack() as opened:
        files = _open(paths, opened)
        for lines in texts:
            for file, line in zip(files, lines, strict=True):
                file.write(f"{line}\n")


def clean(inputs: Sequence[Path], outputs: Sequence[Path], limits: Limits) -> None:
    """Write the pairs of ``inputs`` that `keep` keeps."""
    write(keep(zipped(inputs), limits), outputs)


def split(inputs: Sequence[Path], kept: Sequence[Path], taken: Sequence[Path], every: int) -> None:
    """Split as awk's NR%N==0 does: of each ``every`` lines, the last goes to ``taken``, the others to ``kept``."""
    with ExitStack() as opened:
        others, last = _open(kept, opened), _open(taken, opened)
        for number, lines in enumerate(zipped(inputs), 1):
            for file, line in zip(others if number % every else last, lines, strict=True):
                file.write(f"{line}\n")
