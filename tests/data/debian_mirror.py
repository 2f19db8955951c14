"""A small mirror of Debian: packages whose descriptions are random sentences, and their translations."""

from __future__ import annotations

import bz2
import hashlib
import json
import lzma
from dataclasses import dataclass, field
from pathlib import Path

from published_layouts import STAND_IN, random_lines

from fairseq_residuals.lab.data.corpora.debian import LANGUAGES

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


def write_mirror(
    folder: Path, listed: list[Package], codename: str = "bookworm", version: str = "12.99", held_out: int = 10
) -> dict[str, bytes]:
    """Write the mirror, unsigned; return its files by path below ``main/``."""
    names = "".join(f"Package: {p.name}\nSource: {p.source}\nArchitecture: all\n\n" for p in listed)
    files = {"binary-amd64/Packages.xz": lzma.compress(names.encode())}
    for language in ("en", *LANGUAGES):
        text = "\n".join(p.paragraph(language) for p in listed if language in p.descriptions)
        suffix, compress = (".xz", lzma.compress) if language == "en" else (".bz2", bz2.compress)
        files[f"i18n/Translation-{language}{suffix}"] = compress(text.encode())
    base = folder / "dists" / codename
    for path, content in files.items():
        (base / "main" / path).parent.mkdir(parents=True, exist_ok=True)
        (base / "main" / path).write_bytes(content)
    write_release(base / "InRelease", files, codename, version)
    described = {"held_out": held_out, "merges": 60, "pieces": 150}
    (folder / STAND_IN).write_text(json.dumps(described))
    return files


def write_release(path: Path, files: dict[str, bytes], codename: str = "bookworm", version: str = "12.99") -> None:
    """Write an ``InRelease`` with an envelope that nobody signed."""
    sums = [f" {hashlib.sha256(c).hexdigest()} {len(c):8} main/{name}" for name, c in files.items()]
    head = ["Origin: Debian", f"Version: {version}", f"Codename: {codename}", "Date: Sat, 01 Jan 2028 00:00:00 UTC"]
    body = [*head, "MD5Sum:", " 0 0 main/x", "SHA256:", *sums]
    signed = ["-----BEGIN PGP SIGNED MESSAGE-----", "Hash: SHA256", "", *body]
    envelope = ["-----BEGIN PGP SIGNATURE-----", "", "bm9ib2R5", "-----END PGP SIGNATURE-----", ""]
    path.write_text("\n".join([*signed, *envelope]))
