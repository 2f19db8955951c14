"""Random text in the files and archives that published corpora come in; the same on every machine."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

STAND_IN = "stand_in.json"
"""Beside the files, the sizes that they have."""
STEMS = [a + b + c for a in ("k", "l", "m", "p", "r", "st") for b in "aeiou" for c in ("n", "s", "t")]
ENDINGS = {"en": "ing", "de": "ung", "fr": "é", "cs": "ní", "zh": "的", "src": "ed", "tgt": "er"}
Lines = dict[str, list[str]]
"""Text by language."""
Files = dict[str, bytes]
"""Contents by name."""


def random_lines(name: str, number: int, *languages: str) -> Lines:
    """Return ``number`` sentences of words, a comma and a period; a translation has the words with another ending.

    They are the same for a name whenever they are made.
    """
    draw = random.Random(name)
    lines: Lines = {language: [] for language in languages}
    for _ in range(number):
        words = draw.choices(STEMS, k=draw.randint(3, 9))
        for language in languages:
            ending = ENDINGS.get(language, language)
            first, *rest = [word + ending for word in words]
            lines[language].append(f"{first.capitalize()}, {' '.join(rest)}.")
    return lines


def text(lines: Iterable[str]) -> bytes:
    """Return a line each."""
    return "".join(f"{line}\n" for line in lines).encode()


def plain(pattern: str, lines: Lines) -> Files:
    """Return a file for each language, whose name takes the place of ``{lang}``."""
    return {pattern.format(lang=language): text(sentences) for language, sentences in lines.items()}


def sgm(pattern: str, lines: Lines) -> Files:
    """Return the files of a test set as WMT has them; the first language is the source."""
    files = {}
    for side, (language, sentences) in zip(("src", "ref"), lines.items(), strict=True):
        body = [f'<seg id="{number}">{sentence}</seg>' for number, sentence in enumerate(sentences, 1)]
        head = [f'<{side}set setid="x" srclang="any">', '<doc docid="1" genre="news">', "<p>"]
        files[pattern.format(side=side, lang=language)] = text([*head, *body, "</p>", "</doc>", f"</{side}set>"])
    return files


def write_tar(file: IO[bytes] | gzip.GzipFile, files: Mapping[str, bytes]) -> None:
    """Write files by name; the same files make the same bytes."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))


def pack(files: Mapping[str, bytes], path: Path) -> None:
    """Write a zip, tar or gzipped tar file, as the name says; the same files make the same bytes."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, contents in files.items():
                archive.writestr(zipfile.ZipInfo(name), contents, zipfile.ZIP_DEFLATED)
    elif path.name.endswith(".tar"):
        with path.open("wb") as raw:
            write_tar(raw, files)
    else:
        with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as zipped:
            write_tar(zipped, files)


@dataclass
class StandIn:
    """A mirror that stands in for the published files of a corpus."""

    archives: dict[str, Files]
    """By name; folders by name with a ``/`` at the end."""
    described: Mapping[str, object] = field(default_factory=dict)
    """What :data:`STAND_IN` says of them."""

    def write(self, folder: Path) -> None:
        """Write the mirror."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, files in self.archives.items():
            if name.endswith("/"):
                (folder / name).mkdir()
                for file, contents in files.items():
                    (folder / name / file).write_bytes(contents)
            else:
                pack(files, folder / name)
        (folder / STAND_IN).write_text(json.dumps(self.described))
