"""SentencePiece: models, their dictionaries for fairseq, text in their pieces.

One model may be over English and many other languages, whose text and data follow from it.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from fairseq_residuals.lab.data import clean
from fairseq_residuals.lab.data.binarize import binarize, write_dictionary
from fairseq_residuals.lab.data.corpus import Job
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.parallel_map import lines_of, map_lines
from fairseq_residuals.lab.data.steps import Step, share
from fairseq_residuals.wirings.core.errors import UserError

SPECIAL: dict[str, Any] = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
"""fairseq's special symbols and their numbers in its dictionaries."""
THREADS = 16
"""Threads of training, whatever the machine has: sums over threads make the model depend on their number."""


@dataclass(frozen=True)
class Pieces:
    """Settings of a model of SentencePiece."""

    kind: str
    """``unigram`` or ``bpe``."""
    size: int
    sentences: int = 0
    """Sentences to train on, chosen at random; 0 for all. More need more memory."""

    @property
    def name(self) -> str:
        return f"spm_{self.kind}{self.size}"

    def train(self, inputs: Sequence[Path], folder: Path) -> None:
        """Write ``name``.model and, as fairseq's dictionary, ``name``.txt.

        Raises:
            UserError: the text is too small for the number of pieces.
        """
        sentencepiece.set_random_generator_seed(0)
        model = io.BytesIO()  # not by path: SentencePiece would write its paths into the model
        choice: dict[str, Any] = (
            {"input_sentence_size": self.sentences, "shuffle_input_sentence": True} if self.sentences else {}
        )
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=itertools.chain.from_iterable(map(lines_of, inputs)),
                model_writer=model,
                model_type=self.kind,
                vocab_size=self.size,
                character_coverage=1.0,
                num_threads=THREADS,
                minloglevel=1,
                **SPECIAL,
                **choice,
            )
        except RuntimeError as error:
            raise UserError(f"SentencePiece cannot make {self.size:,} pieces of this text: {error}") from error
        (folder / f"{self.name}.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        words = [processor.id_to_piece(number) for number in range(len(SPECIAL), processor.get_piece_size())]
        write_dictionary(words, folder / f"{self.name}.txt")


@functools.cache
def _processor(model: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


@dataclass(frozen=True)
class EncodePieces:
    """A line in pieces, between blanks."""

    model: Path

    def __call__(self, line: str) -> str:
        return " ".join(_processor(self.model).encode(line, out_type=str))


SPLITS = {"train": "train", "dev": "valid", "test": "test"}
"""fairseq's names of the data sets of a pair, by the files' names."""


class Pair(NamedTuple):
    """English and another language, and where their files are."""

    other: str
    folder: Path
    pattern: str
    """Pattern of the names of its files; ``{pair}``, ``{split}`` and ``{language}`` are put in."""

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
) -> tuple[Step, ...]:
    """Return the steps from text to binary data.

    Args:
        extracted: makes the folder that ``pairs`` lists the pairs of.
        pieces: the model; a stand-in may have a smaller one.
        trusted: is not kept if the sides of a pair do not belong together.
    """
    wanted = dataclasses.replace(pieces, size=job.size("pieces", pieces.size))

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
            directions += [f"en-{other}", f"{other}-en"]
        (folder / "lang_pairs.txt").write_text(",".join(directions) + "\n", encoding="utf-8")

    raw = Step("raw", keep, {}, (extracted,))
    model = Step("sentencepiece", train, {"pieces": wanted}, (raw, extracted))
    text = Step("text", encode, {}, (extracted, model))
    return (raw, model, text, Step("data-bin", make, {}, (text, model)))
