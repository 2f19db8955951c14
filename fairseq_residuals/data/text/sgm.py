"""What surrounds the sentences of a corpus: the tags of WMT's and TED's files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.data.pipeline.parallel_map import lines_of

Markup = Literal["plain", "sgm", "ted"]
"""A sentence a line; a <seg> a sentence; a sentence a line, with TED's tags between and around them."""

# no repetition that can give way to another one: the time is linear in the line
SEGMENT = re.compile(r"<seg[^<>]*>(.*?)</seg>", re.IGNORECASE)
LONGEST = 100_000
"""Characters of a segment; the longest of WMT's test sets has a few thousand."""
OPENED = re.compile(r"<seg[\s>]", re.IGNORECASE)
LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
STRIPPED = re.compile(r"</?(?:title|description)>")


def segments(lines: Iterable[str]) -> Iterator[str]:
    """The text of each <seg>, which may go over several lines; entities such as ``&amp;`` stay as they are."""
    pending = ""
    for line in lines:
        text = f"{pending} {line}" if pending else line
        found = SEGMENT.search(text) if "</seg>" in line.lower() else None
        if found:
            yield " ".join(found[1].split())
            pending = ""
        else:
            pending = text if OPENED.search(text) else ""
        if len(pending) > LONGEST:
            break
    if pending:
        raise UserError(f"a <seg> is not closed: {pending[:60]!r}")


def talks(lines: Iterable[str]) -> Iterator[str]:
    """TED's training lines: addresses and keywords are left out; of titles and descriptions only the tags are."""
    for line in lines:
        if not any(tag in line for tag in LEFT_OUT):
            yield STRIPPED.sub("", line)


def sentences(path: Path, markup: Markup) -> Iterator[str]:
    """The sentences of a file, raw.

    Raises:
        UserError: a file that should have segments has none, or one is not closed.
    """
    if markup == "plain":
        yield from lines_of(path)
    elif markup == "ted":
        yield from talks(lines_of(path))
    else:
        empty = True
        for text in segments(lines_of(path)):
            empty = False
            yield text
        if empty:
            raise UserError(f"{path} has no <seg>: it is no sgm file")
