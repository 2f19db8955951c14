"""SentencePiece: models, and their dictionaries for fairseq."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece

from fairseq_residuals.lab.data.binarize import write_dictionary
from fairseq_residuals.lab.data.parallel_map import lines_of
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
