"""Sentences from files: plain text, and what fairseq-generate prints."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.wirings.core.errors import UserError

UNKNOWN = "UNKNOWNTOKENINREF"
"""A word outside the dictionary in a reference, which no hypothesis may match. fairseq writes ``<<unk>>``, of which
ROUGE sees the letters only, and so the ``<unk>`` of a hypothesis would match."""
SKIPPED = re.compile(r"(?<![\d,])([\d,]++) samples have invalid sizes and will be skipped")
"""Part of fairseq's warning that a text is not evaluated whole."""
_TRANSLATED = re.compile(r"Translated (\d[\d,]{0,17}) sentences? \(")
_LOG = re.compile(r"\| (?:fairseq_cli\.)?generate \| ")
"""Part of a line of the log, which has the number of sentences at its end."""
_GENERATED = re.compile(r"^([STHD])-(\d{1,9})\t")


def read_lines(path: str | Path) -> list[str]:
    r"""Return the lines of a UTF-8 file.

    They are ended by ``\n`` and by nothing else, as in every tool of these pipelines: text has U+2028 and its
    like inside sentences. The ``\r`` and the byte order mark of a file from Windows are dropped.

    Raises:
        UserError: there is no such file, it is empty, or it is not UTF-8.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if not text:
        raise UserError(f"{path} is empty: one sentence a line is needed")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def without_unknown(reference: str) -> str:
    """Return a T- line without ``<unk>``: what was not in the dictionary is no word that a hypothesis could have."""
    return reference.replace("<<unk>>", UNKNOWN)


@dataclass(frozen=True)
class Generation:
    """Lines that fairseq-generate printed, in the order of the data set; of an n-best list, the best."""

    hypotheses: list[str]
    """H- lines: tokens, as the model's dictionary has them (less what ``--remove-bpe`` removed)."""
    detokenized: list[str]
    """D- lines: after ``--bpe`` and ``--tokenizer``; the H- lines again where there are none."""
    targets: list[str] | None
    """T- lines: the reference, words outside the dictionary as ``<<unk>>``."""


def is_generation(lines: Iterable[str]) -> bool:
    """Return whether the lines are what fairseq-generate printed: an H- line with its score, or a line of its log."""
    return any(re.match(r"H-\d+\t-?(?:\d|inf|nan)[^\t]*\t", line) or _LOG.search(line) for line in lines)


def read_generation(path: str | Path) -> Generation:
    """Read what fairseq-generate printed, with or without its log, in any order.

    Raises:
        UserError: no hypotheses; a sentence that is missing or there twice.
    """
    return parse_generation(read_lines(path), str(path))


def parse_generation(lines: Iterable[str], name: str = "the output") -> Generation:
    """Read lines as :func:`read_generation` does; ``name`` is what an error calls them."""
    texts: dict[str, dict[int, str]] = {kind: {} for kind in "STHD"}
    current: dict[str, int] = {}
    translated: int | None = None
    logged = False
    for line in lines:
        match = _GENERATED.match(line)
        if not match:
            count, skipped = _TRANSLATED.search(line), SKIPPED.search(line)
            if skipped:
                raise UserError(
                    f"{name} lacks the hypotheses of {skipped[1]} sentences, which fairseq-generate left out as too"
                    " long: raise --max-tokens, --max-source-positions and --max-target-positions"
                )
            translated = int(count[1].replace(",", "")) if count else translated
            logged = logged or _LOG.search(line) is not None
            continue
        kind, number = match[1], int(match[2])
        text = line[match.end() :]
        if kind in "HD":
            text = text.partition("\t")[2]
        if number not in texts[kind]:
            texts[kind][number] = text
        # the further hypotheses of an n-best list follow the best one; anything else is a second run
        elif kind in "ST" or current.get(kind) != number:
            raise UserError(f"{name} has sentence {number} twice: it holds the output of more than one run")
        current[kind] = number
    if not texts["H"]:
        raise UserError(
            f"{name} has no hypotheses: without --quiet, fairseq-generate prints lines such as H-0<TAB>-0.5<TAB>text"
        )
    missing = max(texts["H"]) + 1 - len(texts["H"])
    if missing:
        first = next(number for number in itertools.count() if number not in texts["H"])
        raise UserError(
            f"{name} lacks the hypotheses of {missing} sentences, the first being number {first}: "
            "fairseq-generate was stopped, ran on a part of the data, or skipped sentences that are too long"
        )
    if translated not in (None, len(texts["H"])):
        raise UserError(
            f"{name} has the hypotheses of {len(texts['H'])} sentences, and says that {translated} were translated: it"
            " is not whole"
        )
    _, targets, detokenized = (_column(texts, kind, name) for kind in "STD")
    if logged and translated is None:
        raise UserError(f"{name} is not whole: fairseq-generate was stopped before it said how many it had translated")
    hypotheses = [texts["H"][number] for number in range(len(texts["H"]))]
    return Generation(hypotheses, detokenized or hypotheses, targets)


def _column(texts: dict[str, dict[int, str]], kind: str, name: str) -> list[str] | None:
    if not texts[kind]:
        return None
    if texts[kind].keys() != texts["H"].keys():
        number = min(texts[kind].keys() ^ texts["H"].keys())
        raise UserError(f"{name} has only one of the lines {kind}-{number} and H-{number}: it is not complete")
    return [texts[kind][number] for number in range(len(texts["H"]))]
