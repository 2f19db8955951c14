"""Byte pair encoding by subword-nmt: the same codes and the same text as by its commands."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import get_vocabulary, learn_bpe

from fairseq_residuals.lab.data.parallel_map import lines_of
from fairseq_residuals.wirings.core.errors import UserError

JOIN = re.compile(r"@@( |$)")
"""What is between the pieces of a word."""
REMEMBERED = 100_000
"""Words whose segmentation a process keeps; subword-nmt itself never forgets one."""


def learn(inputs: Sequence[Path], codes: Path, merges: int, whole: Sequence[str]) -> None:
    """Write the codes that ``subword-nmt learn-bpe -s merges`` learns from the files' concatenation.

    The words ``whole`` are left out of it.

    Raises:
        UserError: there are no words.
    """
    words = get_vocabulary(line for path in inputs for line in lines_of(path))
    for word in whole:
        del words[word]
    if not any(len(word) > 1 for word in words):
        raise UserError(f"{' and '.join(map(str, inputs))}: there are no words to learn a byte pair encoding from")
    with codes.open("w", encoding="utf-8", newline="\n") as out:
        learn_bpe((f"{word} {count}" for word, count in words.items()), out, merges, is_dict=True)


@functools.cache
def _encoder(codes: Path, whole: tuple[str, ...]) -> BPE:
    """Return what splits words by the merges of a file.

    Raises:
        UserError: the file holds no merges.
    """
    with codes.open(encoding="utf-8", newline="\n") as file, redirect_stderr(io.StringIO()) as said:
        try:
            splitter = BPE(file, glossaries=list(whole))
            splitter.process_line("word")  # another version of merges shows with the first word
            return splitter
        except (SystemExit, ValueError, IndexError, NotImplementedError) as error:  # subword-nmt ends the process
            reason = said.getvalue().strip() or str(error)
            raise UserError(f"{codes} has no merges that subword-nmt can read: {reason}") from error


@dataclass(frozen=True)
class Encode:
    """subword-nmt apply-bpe --codes CODES --glossaries WHOLE...: words in pieces, each but a word's last ends in @@."""

    codes: Path
    whole: tuple[str, ...] = ()
    """Words that are never split."""

    def __call__(self, line: str) -> str:
        encoder = _encoder(self.codes, self.whole)
        if len(encoder.cache) > REMEMBERED:
            encoder.cache.clear()
        return str(encoder.process_line(line))
