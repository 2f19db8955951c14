"""A small mirror of Debian: packages whose descriptions are random sentences, and their translations."""

from __future__ import annotations

import bz2
import hashlib
import json
import lzma
from dataclasses import dataclass, field
from pathlib import Path

from published_layouts import STAND_IN, random_lines

from fairseq_residuals.lab.data.corpora.debian import FILES, PACKAGES

BOILERPLATE = {
    "en": "This package contains the development files.",
    "it": "Questo pacchetto contiene i file di sviluppo.",
}


@dataclass
class Package:
    """A binary package."""

    name: str
    source: str
    descriptions: dict[str, list[str]] = field(default_factory=dict)
    """By language, the lines as they stand in the file, synopsis first."""

    @property
    def md5(self) -> str:
        """The key that joins languages."""
        return hashlib.md5("\n".join(self.descriptions["en"]).encode()).hexdigest()

    def paragraph(self, language: str) -> str:
        """Return the package's part of a file of descriptions."""
        lines = [f"Package: {self.name}", f"Description-md5: {self.md5}"]
        return "\n".join([*lines, f"Description-{language}: " + "\n".join(self.descriptions[language]), ""])


def random_package(number: int, *languages: str) -> Package:
    """Return a package of a source of its own: a synopsis, a paragraph over two lines, two items of a list."""
    name = f"lib{number:03}x"
    texts = random_lines(name, 5, "en", *languages)
    described = {
        language: [said[0].rstrip("."), f" {said[1]}", f" {said[2]}", " .", f"  * {said[3]}", f"  * {said[4]}"]
        for language, said in texts.items()
    }
    return Package(name, name, described)


def packages(count: int, *languages: str) -> list[Package]:
    """Return packages of ``count`` sources; each has one of development files besides, which all say the same."""
    listed = []
    for number in range(count):
        package = random_package(number, *languages)
        listed += [package]
        if "it" in languages:
            described = {
                language: [f"{package.descriptions[language][0]} headers", f" {BOILERPLATE[language]}"]
                for language in ("en", "it")
            }
            listed.append(Package(f"{package.name}-dev", f"{package.name} (1.0)", described))
    return listed


def write_mirror(folder: Path, listed: list[Package], held_out: int = 10) -> Path:
    """Write the mirror, whose files have other digests than the pinned ones; return its folder."""
    names = "".join(f"Package: {p.name}\nSource: {p.source}\nArchitecture: all\n\n" for p in listed)
    files = {PACKAGES: names}
    for language in (name for name in FILES if name != PACKAGES):
        files[language] = "\n".join(p.paragraph(language) for p in listed if language in p.descriptions)
    for name, text in files.items():
        path = folder / FILES[name].name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((lzma if path.suffix == ".xz" else bz2).compress(text.encode()))
    described = {"held_out": held_out, "merges": 60}
    (folder / STAND_IN).write_text(json.dumps(described))
    return folder
