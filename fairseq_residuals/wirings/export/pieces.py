"""Dictionaries of fairseq and BPE codes of subword-nmt, as an exported tokenizer reads them."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

CONTINUED = "@@"
"""Mark at the end of a piece that is not its word's last (subword-nmt)."""
WORD_START = "\u2581"
"""Mark at the beginning of a word's first piece (SentencePiece)."""
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""The first tokens of every dictionary of fairseq."""
FILES = {
    "source_dictionary": "source.dict.txt",
    "target_dictionary": "target.dict.txt",
    "bpe_codes": "bpe.codes",
    "sentencepiece_model": "sentencepiece.model",
}


def read_dictionary(path: Path) -> list[str]:
    """Return the tokens of a dictionary of fairseq, the special ones first.

    Raises:
        ValueError: a line is no token with its count.
    """
    words = list(SPECIAL)
    for number, line in enumerate(path.read_text(encoding="utf-8").rstrip("\n").split("\n"), 1):
        word, space, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not space or not count.isdecimal():
            raise ValueError(f"line {number} of {path} is no token with its count")
        words.append(word)
    # fairseq fills up to a multiple of eight by madeupword0000, which are in the file
    return words


def read_codes(path: Path) -> dict[tuple[str, str], int]:
    """Return the merges of subword-nmt with their ranks.

    Raises:
        ValueError: the file is of a version older than 0.2, or a line is no pair.
    """
    first, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if not first.startswith("#version: 0.2"):
        raise ValueError(f"{path} does not begin with #version: 0.2, as BPE codes of subword-nmt 0.2 and later do")
    ranks: dict[tuple[str, str], int] = {}
    for number, line in enumerate(lines, 2):
        pair = tuple(line.strip("\r\n ").split(" "))
        if len(pair) != 2:
            raise ValueError(f"line {number} of {path} is no pair of pieces")
        ranks.setdefault((pair[0], pair[1]), number)
    return ranks


def apply_bpe(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Split a word as subword-nmt does: merge the pair of the lowest rank, wherever it is, until there is none."""
    pieces = [*word[:-1], f"{word[-1]}</w>"]
    while len(pieces) > 1:
        pair = min(pairwise(pieces), key=lambda pair: ranks.get(pair, math.inf))
        if pair not in ranks:
            break
        merged, i = [], 0
        while i < len(pieces):
            together = tuple(pieces[i : i + 2]) == pair
            merged.append("".join(pair) if together else pieces[i])
            i += 1 + together
        pieces = merged
    pieces[-1] = pieces[-1].removesuffix("</w>")
    return [*(piece + CONTINUED for piece in pieces[:-1]), pieces[-1]]
