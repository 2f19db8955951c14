"""The corpora, one module each; its ``CORPUS`` describes it. All but the last are those of the papers."""

from __future__ import annotations

import importlib

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.wirings.core.errors import UserError

CORPORA = (
    "wmt14_en_de",
    "wmt17_en_de",
    "wmt14_en_fr",
    "wmt15_cs_en",
    "iwslt14_de_en",
    "joeynmt_de_en",
    "zh_en",
    "opus100",
    "gigaword",
    "wikitext103",
    "librispeech",
    "debian",
)


def find_corpus(name: str) -> Corpus:
    """Return the corpus of that name.

    Raises:
        UserError: there is none of that name, or a library that it needs is not installed.
    """
    if name not in CORPORA:
        raise UserError(f"there is no corpus {name}: choose one of {', '.join(CORPORA)}")
    try:
        corpus: Corpus = importlib.import_module(f"{__name__}.{name}").CORPUS
    except ModuleNotFoundError as error:
        raise UserError(
            f"{name} needs the library {error.name}, which is not there: pip install '.[text,speech]' in the clone"
        ) from error
    return corpus
