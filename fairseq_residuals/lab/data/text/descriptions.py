"""Descriptions of Debian's packages: how they are read, and what is done to their text.

The files are paragraphs of fields (Debian Policy 5.1). A description is a synopsis on the field's own line, and below
it the long description, indented by a blank (Policy 5.6.13): a line of a period separates paragraphs; what is indented
deeper is kept as it is, and packagers use it for lists, tables and commands. results/prepare/debian.md has the rules of this
module with examples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

Fields = dict[str, list[str]]
"""The lines of each field of a paragraph, the first without the field's name."""
Kind = Literal["synopsis", "prose", "item", "verbatim"]

SHORTEST, LONGEST = 2, 120
"""Words of a unit of a pair."""
RATIO = 2.5
"""How many times as many words one side of a pair may have as the other."""
COPIED = 0.8
"""Share of words that both sides of a pair have; what has more was not translated."""

_BULLET = re.compile("(?:[-*+\u2022\u00b7\u2013\u2014]|o(?= )|\\(?\\d{1,2}[.)]|\\(?[a-z]\\))\\s+(?=\\S)")
_ITEM_END = re.compile(r"\s*[;,.]$")
_PLACEHOLDER = re.compile(r"\b(?:dummy|transitional|metapackage|meta-package|empty package|virtual package)\b", re.I)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_FRENCH_QUOTES = re.compile("\u00ab\\s+([^\u00ab\u00bb]*?)\\s+\u00bb")
_DOUBLE_QUOTES = re.compile("[\u00ab\u00bb\u201c-\u201f]|``|''")
_SINGLE_QUOTES = re.compile("[\u2018-\u201b]")
_CODE = re.compile(r"`([^`'\s](?:[^`']*[^`'\s])?)['`]")
_LINK = re.compile(r"\[([^][]+)\]\(\w+://[^()\s]+\)")
_EMPHASIS = re.compile(r"(?<![\w*_])(\*\*?|_)(?=[^\s*_])([^*_]*[^\s*_])\1(?![\w*_])")
_DASHES = re.compile("(?<= )(?:--|[\u2013\u2014])(?= )")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_WORD_EDGE = re.compile(r"^\W+|\W+$")


class Unit(NamedTuple):
    """A piece of a description that is translated as a whole."""

    kind: Kind
    text: str


def paragraphs(lines: Iterable[str]) -> Iterator[Fields]:
    """Read the paragraphs of a control file."""
    fields: Fields = {}
    name = ""
    for line in lines:
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name].append(line)
        else:
            name, _, value = line.partition(":")
            fields[name] = [value.strip()]
    if fields:
        yield fields


def units(lines: Sequence[str]) -> list[Unit]:
    """Split a description into its synopsis, paragraphs of prose, items of lists, and what is kept as it is."""
    split = [Unit("synopsis", lines[0])]
    inside: Kind | None = None
    for line in lines[1:]:
        body = line.strip()
        indented = line.startswith(("  ", " \t"))
        if body == ".":
            inside = None
        elif bullet := _BULLET.match(body):
            inside = "item"
            split.append(Unit("item", body[bullet.end() :]))
        elif inside is not None and indented == (inside != "prose"):
            split[-1] = Unit(inside, f"{split[-1].text} {body}")
        else:
            inside = "verbatim" if indented else "prose"
            split.append(Unit(inside, body))
    return split


def clean(text: str, language: str) -> str:
    """Remove markup and what differs between languages in typography alone.

    Plain quotation marks and apostrophes for all others (in French without the blanks inside), Markdown's and TeX's
    marks of code as quotation marks, no emphasis, the text of a link for the link, a hyphen for dashes between blanks,
    no invisible characters, single blanks.
    """
    text = " ".join(_INVISIBLE.sub("", text).split())
    if language == "fr":
        text = _FRENCH_QUOTES.sub(r'"\1"', text)
    text = _DOUBLE_QUOTES.sub('"', _SINGLE_QUOTES.sub("'", text))
    text = _CODE.sub(r'"\1"', text).replace("`", "'")
    text = _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", text))
    return _DASHES.sub("-", text).replace("\u2026", "...").strip()


def cleaned(lines: Sequence[str], language: str) -> list[Unit]:
    """Return the units of a description, cleaned: nothing verbatim, and items without what ends them."""
    kept = []
    for kind, text in units(lines):
        if kind != "verbatim":
            plain = clean(text, language)
            kept.append(Unit(kind, _ITEM_END.sub("", plain) if kind == "item" else plain))
    return kept


def is_placeholder(synopsis: str) -> bool:
    """Return whether the English synopsis is that of a package without contents, of which hundreds say the same."""
    return _PLACEHOLDER.search(synopsis) is not None


def is_language(text: str) -> bool:
    """Return whether at least half of the words, and at least two, have two letters in a row."""
    words = text.split()
    with_letters = sum(_LETTERS.search(word) is not None for word in words)
    return with_letters >= max(2, len(words) / 2)


def is_copy(one: str, other: str) -> bool:
    """Return whether two texts share more than :data:`COPIED` of their words, whatever their case and punctuation."""
    first, second = _words(one), _words(other)
    shared = sum((first & second).values())
    return shared > COPIED * max(first.total(), second.total())


def _words(text: str) -> Counter[str]:
    return Counter(filter(None, (_WORD_EDGE.sub("", word.casefold()) for word in text.split())))


def pairs(english: Sequence[Unit], other: Sequence[Unit]) -> Iterator[tuple[str, str]]:
    """Yield the units of a description and of its translation that correspond and can be learned from.

    All units where both have the same kinds in the same order; else synopsis and prose, where both have as many; else
    the synopsis alone.
    """
    if [unit.kind for unit in english] != [unit.kind for unit in other]:
        english, other = ([unit for unit in side if unit.kind != "item"] for side in (english, other))
        if len(english) != len(other):
            english, other = english[:1], other[:1]
    for (_, one), (_, another) in zip(english, other, strict=True):
        counts = (len(one.split()), len(another.split()))
        if min(counts) < SHORTEST or max(counts) > min(LONGEST, RATIO * min(counts)):
            continue
        if is_language(one) and is_language(another) and not is_copy(one, another):
            yield one, another
