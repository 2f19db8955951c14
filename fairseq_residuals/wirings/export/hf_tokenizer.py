"""The tokenizer of an exported model, for ``AutoTokenizer``: dictionaries of fairseq, and BPE codes or SentencePiece.

Text is what ``fairseq-interactive`` reads: tokenized and normalized as the training text was before BPE.
"""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer

from fairseq_residuals.wirings.export.pieces import (
    CONTINUED,
    FILES,
    SPECIAL,
    WORD_START,
    apply_bpe,
    read_codes,
    read_dictionary,
)


class ResidualTokenizer(PreTrainedTokenizer):
    """Encode source text, or ``text_target``, with an end of sentence, and decode target tokens.

    Of a language model, both are its own.
    """

    vocab_files_names = FILES
    model_input_names = ("input_ids", "attention_mask")

    def __init__(
        self,
        source_dictionary: str | None = None,
        target_dictionary: str | None = None,
        bpe_codes: str | None = None,
        sentencepiece_model: str | None = None,
        ends_sentences: bool = True,
        splits_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Read the files.

        Args:
            source_dictionary, target_dictionary: files of fairseq.
            bpe_codes: of subword-nmt.
            sentencepiece_model: its file.
            ends_sentences: whether an end of sentence follows the text; in a language model it precedes it.
            splits_by: which of the files words are split by: "bpe_codes" or "sentencepiece_model"; None: by spaces.
            kwargs: those of every tokenizer of transformers.

        Raises:
            ValueError: a file is damaged or missing.
            ModuleNotFoundError: the package sentencepiece is needed and missing.
        """
        self.files = {
            "source_dictionary": source_dictionary,
            "target_dictionary": target_dictionary,
            "bpe_codes": bpe_codes,
            "sentencepiece_model": sentencepiece_model,
        }
        # transformers gives None for a file that a folder has not
        missing = [
            FILES.get(key, key)
            for key in ("source_dictionary", "target_dictionary", splits_by)
            if key and not self.files.get(key)
        ]
        if missing or source_dictionary is None or target_dictionary is None:
            raise ValueError(f"this tokenizer needs {' and '.join(missing)}, and its folder has no such file")
        self.source = read_dictionary(Path(source_dictionary))
        self.target = read_dictionary(Path(target_dictionary))
        # of words that are there twice, the last ones count: a dictionary marks them by #fairseq:overwrite
        self.source_ids, self.target_ids = (
            {word: i for i, word in enumerate(words)} for words in (self.source, self.target)
        )
        self.ids = self.source_ids
        ranks = None if bpe_codes is None else read_codes(Path(bpe_codes))
        # words come again and again
        self._split = None if ranks is None else lru_cache(100_000)(lambda word: apply_bpe(word, ranks))
        self.pieces = None if sentencepiece_model is None else _sentencepiece(sentencepiece_model)
        self.ends_sentences = ends_sentences
        bos, pad, eos, unk = SPECIAL
        defaults = {"bos_token": bos, "pad_token": pad, "eos_token": eos, "unk_token": unk}
        super().__init__(ends_sentences=ends_sentences, splits_by=splits_by, **(defaults | kwargs))

    @property
    def vocab_size(self) -> int:
        """The tokens of the source."""
        return len(self.source)

    def get_vocab(self) -> dict[str, int]:
        """Return the tokens of the source with their numbers."""
        return dict(self.source_ids)

    def tokenize(self, text: str, **_: Any) -> list[str]:
        """Split text into tokens; what it has of special tokens is text."""
        pieces = [text]
        if self.pieces is not None:
            pieces = self.pieces.encode(text, out_type=str)
        elif self._split is not None:
            # subword-nmt splits words at spaces alone, and fairseq what it wrote at all that is white
            pieces = [piece for word in text.strip("\r\n ").split(" ") if word for piece in self._split(word)]
        return " ".join(pieces).split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.ids.get(token, SPECIAL.index("<unk>"))

    def _switch_to_target_mode(self) -> None:
        """Encode target text from now on: transformers calls it for ``text_target``."""
        self.ids = self.target_ids

    def _switch_to_input_mode(self) -> None:
        self.ids = self.source_ids

    def _convert_id_to_token(self, index: int) -> str:
        return self.target[index] if 0 <= index < len(self.target) else SPECIAL[3]

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return a sentence with its end behind it, or of a language model before it."""
        if token_ids_1 is not None:
            raise ValueError("a model of translation reads one sentence, not a pair")
        end = [SPECIAL.index("</s>")]
        return token_ids_0 + end if self.ends_sentences else end + token_ids_0

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join pieces to words."""
        if self.pieces is not None:
            return "".join(tokens).replace(WORD_START, " ").strip()
        text = " ".join(tokens)
        return text if self._split is None else f"{text} ".replace(f"{CONTINUED} ", "").rstrip()

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Copy the files."""
        saved = []
        for key, file in self.files.items():
            if file is not None:
                target = Path(save_directory) / f"{filename_prefix + '-' if filename_prefix else ''}{FILES[key]}"
                if not target.exists() or not target.samefile(file):
                    shutil.copyfile(file, target)
                saved.append(str(target))
        return tuple(saved)


def _sentencepiece(path: str) -> Any:
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=path)
