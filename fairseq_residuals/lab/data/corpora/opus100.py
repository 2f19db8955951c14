"""OPUS-100: English and up to 99 other languages, for one model from and to all of them.

As in the script that ResiDual names: no tokenizer and no cleaning, one SentencePiece BPE of 64,000 pieces with full
character coverage over all training text (here over 10 million sentences of it, chosen at random, as OPUS-100's
authors do: all 110 million do not fit into memory). Languages without validation and test data (an, dz, hy, mn, yo)
are left out, which leaves 94 besides English. The text has no language tags: fairseq's task adds them
(``--encoder-langtok tgt``), and reads both directions of a pair from one file.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from fairseq_residuals.lab.data import clean
from fairseq_residuals.lab.data.binarize import binarize
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.parallel_map import map_lines
from fairseq_residuals.lab.data.sentence_pieces import Pieces
from fairseq_residuals.lab.data.steps import Step, share

ARCHIVE = Source(
    "opus-100-corpus-v1.0.tar.gz",
    (
        "https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-v1.0.tar.gz",
        "https://data.statmt.org/opus-100-corpus/v1.0/opus-100-corpus-v1.0.tar.gz",
    ),
)
PIECES = Pieces("bpe", 64000, sentences=10_000_000)
SPLITS = {"train": "train", "dev": "valid", "test": "test"}
"""fairseq's names of the data sets of a pair, by the files' names."""


@functools.cache
def _processor(model: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


@dataclass(frozen=True)
class EncodePieces:
    """A line in pieces, between blanks."""

    model: Path

    def __call__(self, line: str) -> str:
        return " ".join(_processor(self.model).encode(line, out_type=str))


class Pair(NamedTuple):
    """English and another language, and the folder of their files."""

    other: str
    folder: Path

    def file(self, split: str, language: str) -> Path:
        return self.folder / f"opus.{self.folder.name}-{split}.{language}"

    @property
    def languages(self) -> tuple[str, str]:
        return ("en", self.other)

    @classmethod
    def of(cls, folder: Path) -> Pair:
        """Return the pair that a folder is called by, English first or second."""
        first, _, second = folder.name.partition("-")
        return cls(second if first == "en" else first, folder)


def pairs(unpacked: Path) -> Iterator[Pair]:
    """Yield the pairs that have all three data sets, by name."""
    for folder in sorted(unpacked.glob("**/supervised/*-*")):
        pair = Pair.of(folder)
        if all(pair.file(split, language).is_file() for split in SPLITS for language in pair.languages):
            yield pair


def plan(job: Job) -> tuple[Step, ...]:
    wanted = dataclasses.replace(PIECES, size=job.size("pieces", PIECES.size))

    def train(folder: Path, raw: Path, unpacked: Path) -> None:
        wanted.train([p.file("train", language) for p in pairs(unpacked) for language in p.languages], folder)

    def keep(folder: Path, unpacked: Path) -> None:
        with job.trusting(ARCHIVE):
            for pair in pairs(unpacked):
                for split in SPLITS:
                    clean.check_parallel([pair.file(split, language) for language in pair.languages])
                (folder / pair.folder.name).mkdir()
                for language in pair.languages:
                    share(pair.file("test", language), folder / pair.folder.name / f"test.{language}")

    def encode(folder: Path, unpacked: Path, model: Path) -> None:
        encoder = EncodePieces(model / f"{wanted.name}.model")
        for pair in pairs(unpacked):
            (folder / pair.folder.name).mkdir()
            for split, called in SPLITS.items():
                for language in pair.languages:
                    with (folder / pair.folder.name / f"{called}.{language}").open("wb") as out:
                        label = f"{pair.folder.name} {split} {language}"
                        map_lines(encoder, [pair.file(split, language)], out, job.workers, label)

    def make(folder: Path, text: Path, model: Path) -> None:
        directions = []
        for encoded in sorted(path for path in text.iterdir() if path.is_dir()):
            other = Pair.of(encoded).other
            files = [f"--{called}pref={encoded / called}" for called in SPLITS.values()]
            flags = ["--source-lang", "en", "--target-lang", other, "--joined-dictionary", *files]
            binarize(folder, [*flags, f"--srcdict={model / wanted.name}.txt"], job.workers)
            directions += [f"en-{other}", f"{other}-en"]
        (folder / "lang_pairs.txt").write_text(",".join(directions) + "\n", encoding="utf-8")

    unpacked = job.unpacked(ARCHIVE, ("*/supervised/*/opus.*",))
    raw = Step("raw", keep, {}, (unpacked,))
    model = Step("sentencepiece", train, {"pieces": wanted}, (raw, unpacked))
    text = Step("text", encode, {}, (unpacked, model))
    return (raw, model, text, Step("data-bin", make, {}, (text, model)))


# which directions there are is told by data-bin/lang_pairs.txt; the test set of each is called test
OPUS100 = Corpus("opus100", {"all": Variant(plan, (ARCHIVE,), "all languages that have test data", {})})
