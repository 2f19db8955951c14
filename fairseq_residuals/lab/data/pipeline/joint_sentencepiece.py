"""English and many other languages, for one model: SentencePiece over all of them, and one dictionary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_residuals.lab.data.pipeline.binarize import binarize
from fairseq_residuals.lab.data.pipeline.corpus import Job
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_map import map_lines
from fairseq_residuals.lab.data.pipeline.steps import Step, share
from fairseq_residuals.lab.data.text import clean
from fairseq_residuals.lab.data.text.sentence_pieces import EncodePieces, Pieces

SPLITS = {"train": "train", "dev": "valid", "test": "test"}
"""What fairseq calls the data sets of a pair."""


class Pair(NamedTuple):
    """English and another language, and where their files are."""

    other: str
    folder: Path
    pattern: str
    """Of the names of its files; ``{pair}``, ``{split}`` and ``{language}`` are put in."""

    def file(self, split: str, language: str) -> Path:
        return self.folder / self.pattern.format(pair=self.folder.name, split=split, language=language)

    @property
    def languages(self) -> tuple[str, str]:
        return ("en", self.other)

    @classmethod
    def of(cls, folder: Path, pattern: str) -> Pair:
        """Return the pair that a folder is called by, English first or second."""
        first, _, second = folder.name.partition("-")
        return cls(second if first == "en" else first, folder, pattern)


def steps(
    job: Job,
    extracted: Step,
    pairs: Callable[[Path], Iterable[Pair]],
    pieces: Pieces,
    trusted: Source,
    both_directions: bool = True,
) -> tuple[Step, ...]:
    """Return the steps from text to binary data.

    Args:
        extracted: makes the folder that ``pairs`` lists the pairs of.
        pieces: the model; a stand-in may have a smaller one.
        trusted: is not kept if the sides of a pair do not belong together.
        both_directions: whether models may translate into English too.
    """
    wanted = dataclasses.replace(pieces, size=job.size("pieces", pieces.size), sha256=job.size("sha256", pieces.sha256))

    def train(folder: Path, raw: Path, extracted: Path) -> None:
        wanted.train([p.file("train", language) for p in pairs(extracted) for language in p.languages], folder)

    def keep(folder: Path, extracted: Path) -> None:
        with job.trusting(trusted):
            for pair in pairs(extracted):
                for split in SPLITS:
                    clean.check_parallel([pair.file(split, language) for language in pair.languages])
                (folder / pair.folder.name).mkdir()
                for language in pair.languages:
                    share(pair.file("test", language), folder / pair.folder.name / f"test.{language}")

    def encode(folder: Path, extracted: Path, model: Path) -> None:
        encoder = EncodePieces(model / f"{wanted.name}.model")
        for pair in pairs(extracted):
            (folder / pair.folder.name).mkdir()
            for split, called in SPLITS.items():
                for language in pair.languages:
                    with (folder / pair.folder.name / f"{called}.{language}").open("wb") as out:
                        label = f"{pair.folder.name} {split} {language}"
                        map_lines(encoder, [pair.file(split, language)], out, job.workers, label)

    def make(folder: Path, text: Path, model: Path) -> None:
        directions = []
        for encoded in sorted(path for path in text.iterdir() if path.is_dir()):
            other = Pair.of(encoded, "").other
            files = [f"--{called}pref={encoded / called}" for called in SPLITS.values()]
            flags = ["--source-lang", "en", "--target-lang", other, "--joined-dictionary", *files]
            binarize(folder, [*flags, "--srcdict", model / f"{wanted.name}.txt"], job.workers)
            directions += [f"en-{other}", f"{other}-en"] if both_directions else [f"en-{other}"]
        (folder / "lang_pairs.txt").write_text(",".join(directions) + "\n", encoding="utf-8")

    raw = Step("raw", keep, {}, (extracted,))
    model = Step("sentencepiece", train, {"pieces": wanted}, (raw, extracted))
    text = Step("text", encode, {}, (extracted, model))
    directed = {} if both_directions else {"directions": "from English"}
    return (raw, model, text, Step("data-bin", make, directed, (text, model)))
