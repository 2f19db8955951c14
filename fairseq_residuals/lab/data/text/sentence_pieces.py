"""SentencePiece models, their dictionaries for fairseq, and text in their pieces."""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from fairseq_residuals.lab.data.pipeline.binarize import write_dictionary
from fairseq_residuals.lab.data.pipeline.parallel_map import lines_of
from fairseq_residuals.wirings.core.errors import UserError

SPECIAL: dict[str, Any] = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
"""fairseq's special symbols and their numbers in its dictionaries."""
THREADS = 16
"""Fixed, whatever the machine has: sums over threads make the model depend on their number."""


@dataclass(frozen=True)
class Pieces:
    """What is asked of SentencePiece."""

    kind: str
    """``unigram`` or ``bpe``."""
    size: int
    sentences: int = 0
    """Trained on that many, chosen at random; 0 for all. More need more memory."""
    sha256: str = ""
    """Of the model that a recipe was published with, if it is known."""

    @property
    def name(self) -> str:
        return f"spm_{self.kind}{self.size}"

    def train(self, inputs: Sequence[Path], folder: Path) -> None:
        """Write ``name``.model and, as fairseq's dictionary, ``name``.txt.

        Raises:
            UserError: the text is too small for the number of pieces, or the model is not the recipe's.
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
        digest = hashlib.sha256(model.getvalue()).hexdigest()
        if self.sha256 not in ("", digest):
            raise UserError(f"the SentencePiece model has the sha256 {digest} and the recipe's has {self.sha256}")
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
