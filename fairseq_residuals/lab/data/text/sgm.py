"""What surrounds the sentences of a corpus: the tags of WMT's and TED's files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from fairseq_residuals.lab.data.pipeline.parallel_map import lines_of
from fairseq_residuals.wirings.core.errors import UserError

Markup = Literal["plain", "sgm", "ted"]
"""A sentence a line; a <seg> a sentence; a sentence a line, with TED's tags between and around them."""

OPENING = re.compile(r"<seg(?:\s[^<>]*)?>", re.IGNORECASE)
CLOSING = re.compile(r"</seg\s*>", re.IGNORECASE)
LONGEST = 100_000
"""Characters of a segment; the longest of WMT's test sets has a few thousand."""
OPENED = re.compile(r"<seg[\s>]", re.IGNORECASE)
LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
STRIPPED = re.compile(r"</?(?:title|description)>")


def segments(lines: Iterable[str]) -> Iterator[str]:
    """Yield the text of each <seg>.

    A line may have several, and one may go over several lines. Entities such as ``&amp;`` stay as they are.

    Raises:
        UserError: a <seg> is not closed before the next begins, or is closed and was not opened.
    """
    pending = ""
    for line in lines:
        *closed, rest = CLOSING.split(f"{pending} {line}" if pending else line)
        for text in closed:
            opening = OPENING.search(text)
            if opening is None:
                raise UserError(f"a </seg> closes no <seg>: {text[-60:]!r}")
            segment = text[opening.end() :]
            if OPENED.search(segment):
                raise _unclosed(text)
            yield " ".join(segment.split())
        pending = rest if OPENED.search(rest) else ""
        if len(pending) > LONGEST:
            break
    if pending:
        raise _unclosed(pending)


def _unclosed(text: str) -> UserError:
    return UserError(f"a <seg> is not closed: {text[:60]!r}")


def talks(lines: Iterable[str]) -> Iterator[str]:
    """Yield TED's training lines: without addresses and keywords; titles and descriptions lose their tags alone."""
    for line in lines:
        if not any(tag in line for tag in LEFT_OUT):
            yield STRIPPED.sub("", line)


def sentences(path: Path, markup: Markup) -> Iterator[str]:
    """Yield the sentences of a file, raw.

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
