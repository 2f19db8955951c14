"""The corpora of the papers, one module each: ``CORPUS`` describes it, ``TEST_SETS`` names fairseq's subsets."""

from __future__ import annotations

import importlib
from types import ModuleType

from fairseq_residuals.data.corpus import Corpus
from modern_fairseq.errors import UserError

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
)


def corpus_module(name: str) -> ModuleType:
    """The module of a corpus.

    Raises:
        UserError: there is none of that name, or a library that it needs is not installed.
    """
    if name not in CORPORA:
        raise UserError(f"there is no corpus {name}: choose one of {', '.join(CORPORA)}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{name} needs the library {error.name}, which is not there: pip install 'fairseq-residuals[text,speech]'"
        ) from error


def find_corpus(name: str) -> Corpus:
    """The corpus of that name; raises `UserError` if there is none."""
    corpus: Corpus = corpus_module(name).CORPUS
    return corpus
