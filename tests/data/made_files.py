"""Synthetic parallel text, and the files and archives that published text comes in.

The text is random words of a synthetic language; its translation has the same words, each with another ending.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STEMS = [a + b + c for a in ("k", "l", "m", "p", "r", "st") for b in "aeiou" for c in ("n", "s", "t")]
ENDINGS = {"en": "ing", "de": "ung", "fr": "é", "cs": "ní", "zh": "的", "src": "ed", "tgt": "er"}
Lines = dict[str, list[str]]
"""Text by language."""
Files = dict[str, bytes]


def made(name: str, number: int, *languages: str) -> Lines:
    """``number`` sentences that are the same for a name whenever they are made: words, a comma, a period."""
    draw = random.Random(name)
    lines: Lines = {language: [] for language in languages}
    for _ in range(number):
        words = draw.choices(STEMS, k=draw.randint(3, 9))
        for language in languages:
            ending = ENDINGS.get(language, language)
            first, *rest = [word + ending for word in words]
            lines[language].append(f"{first.capitalize()}, {' '.join(rest)}.")
    return lines


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def plain(pattern: str, lines: Lines) -> Files:
    return {pattern.format(lang=language): text(sentences) for language, sentences in lines.items()}


def sgm(pattern: str, lines: Lines) -> Files:
    """The files of a test set as WMT has them; the first language is the source."""
    files = {}
    for side, (language, sentences) in zip(("src", "ref"), lines.items(), strict=True):
        body = [f'<seg id="{number}">{sentence}</seg>' for number, sentence in enumerate(sentences, 1)]
        head = [f'<{side}set setid="x" srclang="any">', '<doc docid="1" genre="news">', "<p>"]
        files[pattern.format(side=side, lang=language)] = text([*head, *body, "</p>", "</doc>", f"</{side}set>"])
    return files


def tar(files: Mapping[str, bytes], path: Path, mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, contents in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            archive.addfile(info, io.BytesIO(contents))


def pack(files: Mapping[str, bytes], path: Path) -> None:
    """An archive of the kind that its name says."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, contents in files.items():
                archive.writestr(name, contents)
    else:
        tar(files, path, "w" if path.name.endswith(".tar") else "w:gz")


@dataclass
class StandIn:
    """Archives by name, folders by name with a / at the end, and what stand_in.json says of them."""

    archives: dict[str, Files]
    described: dict[str, object] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, files in self.archives.items():
            if name.endswith("/"):
                (folder / name).mkdir()
                for file, contents in files.items():
                    (folder / name / file).write_bytes(contents)
            else:
                pack(files, folder / name)
        (folder / "stand_in.json").write_text(json.dumps(self.described))
