"""Descriptions of a Debian release's packages, as examples to learn from: how they are read, what is done to the text.

The files are paragraphs of fields (Debian Policy 5.1). A description is a synopsis on the field's own line, and below
it the long description, indented by a blank (Policy 5.6.13): a line of a period separates paragraphs; what is indented
deeper is kept as it is, and packagers use it for lists, tables and commands. results/prepare/debian.md has the rules of
this module with examples.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from fairseq_residuals.lab.data.archives import decompressed

Fields = dict[str, list[str]]
"""The lines of each field of a paragraph, the first without the field's name."""
Kind = Literal["synopsis", "prose", "item", "verbatim"]

SHORTEST, LONGEST = 2, 120
"""Words of a unit of a pair."""
RATIO = 2.5
"""Most times as many words as one side of a pair may have as the other."""
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
_WITHOUT_EDGES = re.compile(r"\w(?:.*\w)?")
PACKAGES = "binary-amd64/Packages"
SHORTEST_BODY, LONGEST_BODY = 15, 400
"""Words of a long description that a synopsis is to be made of."""
_VERSION = re.compile(r"[-.]?\d[\d.]*$")

_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")
_OTHER_THAN_WORDS = re.compile(r"\W+")
_DIGITS = re.compile(r"\d+")
LARGEST = 0.05
"""Largest share of a held-out set that one group may contribute: the set is to be about many things."""


class Example(NamedTuple):
    """An example that a model learns from, or is tested on."""

    group: str
    """Group of the example; examples of one group are all in the same data set."""
    key: str
    """The key of which one data set keeps only the first example."""
    texts: tuple[str, ...]


class Description(NamedTuple):
    """The description of one package, in one language."""

    package: str
    units: list[Unit]

    @property
    def body(self) -> str:
        """The long description on one line."""
        return " ".join(unit.text for unit in self.units[1:])


class Descriptions:
    """The English descriptions of a release; packages without contents are left out."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        """Read the English descriptions and the names of the source packages.

        Args:
            paths: the list of packages as :data:`PACKAGES`, and the descriptions by language.

        Raises:
            UserError: a file is damaged.
        """
        self._paths = paths
        # a package's source has its name unless the package says otherwise; a version may follow
        fields = _read(paths[PACKAGES])
        self._sources = {f["Package"][0]: f.get("Source", f["Package"])[0].split()[0] for f in fields}
        everything = self._in("en").items()
        self._english = {key: said for key, said in everything if not is_placeholder(said.units[0].text)}

    def group(self, package: str) -> str:
        """Return the source package without a version at its end: gcc-11 and gcc-12 say the same of other versions."""
        source = self._sources.get(package, package)
        return _VERSION.sub("", source) or source

    def translated(self, language: str) -> Iterator[Example]:
        """Yield pairs of English and another language: the texts are a pair, the key is the English one."""
        for key, said in self._in(language).items():
            if english := self._english.get(key):
                for one, other in pairs(english.units, said.units):
                    yield Example(self.group(english.package), one, (one, other))

    def headlines(self) -> Iterator[Example]:
        """Yield long descriptions and their synopses."""
        for said in self._english.values():
            synopsis, words = said.units[0].text, len(said.body.split())
            if SHORTEST_BODY <= words <= LONGEST_BODY and is_language(synopsis) and is_language(said.body):
                yield Example(self.group(said.package), said.body, (said.body, synopsis))

    def text(self) -> Iterator[Example]:
        """Yield everything in English, a paragraph at a time."""
        for said in self._english.values():
            for unit in said.units:
                if is_language(unit.text) and len(unit.text.split()) <= LONGEST_BODY:
                    yield Example(self.group(said.package), unit.text, (unit.text,))

    def _in(self, language: str) -> dict[str, Description]:
        """Return descriptions by the MD5 of the English text, which packages with one description share."""
        field = f"Description-{language}"
        descriptions: dict[str, Description] = {}
        for fields in _read(self._paths[language]):
            units = cleaned(fields[field], language)
            descriptions.setdefault(fields["Description-md5"][0], Description(fields["Package"][0], units))
        return descriptions


def _read(path: Path) -> Iterator[Fields]:
    with decompressed(path) as file:
        yield from paragraphs(io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n"))


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
    split: list[tuple[Kind, list[str]]] = [("synopsis", [lines[0]])]
    inside: Kind | None = None
    for line in lines[1:]:
        body = line.strip()
        indented = line.startswith(("  ", " \t"))
        if body == ".":
            inside = None
        elif bullet := _BULLET.match(body):
            inside = "item"
            split.append(("item", [body[bullet.end() :]]))
        elif inside is not None and indented == (inside != "prose"):
            split[-1][1].append(body)
        else:
            inside = "verbatim" if indented else "prose"
            split.append((inside, [body]))
    return [Unit(kind, " ".join(bodies)) for kind, bodies in split]


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
    found = (_WITHOUT_EDGES.search(word.casefold()) for word in text.split())
    return Counter(word[0] for word in found if word)


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


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text in a form in which case, punctuation and the digits of numbers do not count."""
    for sentence in _SENTENCE_END.split(text):
        if plain := _OTHER_THAN_WORDS.sub(" ", _DIGITS.sub("0", sentence.casefold())).strip():
            yield plain


def split(examples: Iterable[Example], size: int) -> dict[str, list[Example]]:
    """Divide examples into ``test`` and ``valid``, of at least ``size`` each, and ``train``.

    Groups go to test until it is large enough, then to valid, then to train, in the order of the SHA-256 of their
    names, which has nothing to do with what they are about; very large ones go to train. Of a group that is held out,
    examples that share a sentence with another group are in no data set.
    """
    groups: defaultdict[str, list[tuple[Example, tuple[str, ...]]]] = defaultdict(list)
    owner: dict[str, str] = {}
    shared: set[str] = set()
    for example in examples:
        said = tuple(sentence for text in example.texts for sentence in sentences(text))
        groups[example.group].append((example, said))
        shared.update(sentence for sentence in said if owner.setdefault(sentence, example.group) != example.group)
    sets: dict[str, dict[str, Example]] = {"test": {}, "valid": {}, "train": {}}
    for group in sorted(groups, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        small = len(groups[group]) <= LARGEST * size
        name = next((name for name in ("test", "valid") if small and len(sets[name]) < size), "train")
        for example, said in groups[group]:
            if name == "train" or shared.isdisjoint(said):
                sets[name].setdefault(example.key, example)
    return {name: list(kept.values()) for name, kept in sets.items()}
