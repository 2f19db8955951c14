"""What a release of Debian says of its packages, as examples to learn from."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fairseq_residuals.lab.data.pipeline.archives import decompressed
from fairseq_residuals.lab.data.text.descriptions import (
    Fields,
    Unit,
    cleaned,
    is_language,
    is_placeholder,
    pairs,
    paragraphs,
)
from fairseq_residuals.lab.data.text.held_out import Example
from fairseq_residuals.wirings.core.errors import UserError

PACKAGES = "binary-amd64/Packages"
SHORTEST_BODY, LONGEST_BODY = 15, 400
"""Words of a long description that a synopsis is to be made of."""
_VERSION = re.compile(r"[-.]?\d[\d.]*$")

Get = Callable[[str], Path]
"""From a name such as ``i18n/Translation-it`` to where the file is."""


def translation(language: str) -> str:
    """Name the file of the descriptions in a language."""
    return f"i18n/Translation-{language}"


class Description(NamedTuple):
    """Of one package, in one language."""

    package: str
    units: list[Unit]

    @property
    def body(self) -> str:
        """The long description on one line."""
        return " ".join(unit.text for unit in self.units[1:])


class Descriptions:
    """The English descriptions of a release; packages without contents are left out."""

    def __init__(self, get: Get) -> None:
        """Read the English descriptions and the names of the source packages.

        Raises:
            UserError: a file is damaged or is not what its name says.
        """
        self._get = get
        # a package's source has its name unless the package says otherwise; a version may follow
        fields = _read(get(PACKAGES), "Package")
        self._sources = {f["Package"][0]: f.get("Source", f["Package"])[0].split()[0] for f in fields}
        everything = self._in("en").items()
        self._english = {key: said for key, said in everything if not is_placeholder(said.units[0].text)}

    def names(self, package: str) -> str:
        """Return the names of the package and of its source."""
        return " ".join(dict.fromkeys((package, self._sources.get(package, package))))

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
        """Yield long descriptions and their synopses; the note has the package's names."""
        for said in self._english.values():
            synopsis, words = said.units[0].text, len(said.body.split())
            if SHORTEST_BODY <= words <= LONGEST_BODY and is_language(synopsis) and is_language(said.body):
                yield Example(self.group(said.package), said.body, (said.body, synopsis), self.names(said.package))

    def text(self) -> Iterator[Example]:
        """Yield everything in English, a paragraph at a time."""
        for said in self._english.values():
            for unit in said.units:
                if is_language(unit.text) and len(unit.text.split()) <= LONGEST_BODY:
                    yield Example(self.group(said.package), unit.text, (unit.text,))

    def _in(self, language: str) -> dict[str, Description]:
        """By the MD5 of the English text, which packages with one description share."""
        field = f"Description-{language}"
        descriptions: dict[str, Description] = {}
        for fields in _read(self._get(translation(language)), "Package", "Description-md5", field):
            units = cleaned(fields[field], language)
            descriptions.setdefault(fields["Description-md5"][0], Description(fields["Package"][0], units))
        return descriptions


def _read(path: Path, *needed: str) -> Iterator[Fields]:
    with decompressed(path) as file:
        for fields in paragraphs(io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n")):
            if missing := [name for name in needed if name not in fields]:
                raise UserError(f"{path} has a paragraph without {', '.join(missing)}: give another mirror")
            yield fields
