"""Prepares a corpus from its stand-in, in this process, and reads what came out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary, data_utils
from published_layouts import STAND_IN
from stand_ins import build

from fairseq_residuals.lab.data.corpora import find_corpus
from fairseq_residuals.lab.data.corpus import Job, prepare
from fairseq_residuals.lab.data.download import Downloads


@dataclass(frozen=True)
class Prepared:
    out: Path
    mirror: Path | None = None

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.out / "prepared.json").read_text())

    def lines(self, name: str) -> list[str]:
        """The lines of a file of OUT."""
        text = (self.out / name).read_bytes().decode()
        assert text.endswith("\n")
        return text[:-1].split("\n")

    def words(self, name: str) -> list[str]:
        """The lines of a file with subwords put together."""
        return [line.replace("@@ ", "") for line in self.lines(name)]

    def dictionary(self, language: str = "") -> Dictionary:
        return Dictionary.load(str(self.out / f"data-bin/dict{language and f'.{language}'}.txt"))

    def binarized(self, subset: str, pair: str = "", language: str = "") -> list[str]:
        """What fairseq reads: the words of its dictionary, <unk> for others."""
        name = ".".join(filter(None, (subset, pair, language)))
        data = data_utils.load_indexed_dataset(str(self.out / "data-bin" / name), combine=False)
        words = self.dictionary(language)
        assert all(sentence[-1] == words.eos() for sentence in data)
        return [words.string(sentence[:-1], unk_string="<unk>") for sentence in data]

    def files(self) -> dict[str, bytes]:
        """All that was made, except for what is kept for the next run."""
        return {
            path.relative_to(self.out).as_posix(): path.read_bytes()
            for path in sorted(self.out.rglob("*"))
            if path.is_file() and path.name != ".lock" and "downloads" not in path.parts
        }


def run(corpus: str, out: Path, mirror: Path | None = None, variant: str | None = None, workers: int = 1) -> Prepared:
    """Prepares ``corpus``, from the files in ``mirror`` that stand in for the published ones."""
    stand_in = json.loads((mirror / STAND_IN).read_text()) if mirror else None
    downloads = Downloads(out / "downloads", mirror, stand_in.get("digests", {}) if stand_in else None)
    prepare(find_corpus(corpus), variant, Job(out, downloads, workers, stand_in))
    return Prepared(out, mirror)


def prepare_stand_in(corpus: str, folder: Path, variant: str | None = None) -> Prepared:
    """Makes the stand-in, unless it is there, and prepares from it."""
    mirror = folder / "mirror"
    if not mirror.exists():
        build(corpus, mirror)
    return run(corpus, folder / f"out-{variant}", mirror, variant)
