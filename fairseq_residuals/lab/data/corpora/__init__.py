"""The corpora, one module each; its ``CORPUS`` describes it.

Those of the papers come first, then text that people wrote, then :data:`SYNTHETIC` ones.
"""

from __future__ import annotations

import importlib

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.wirings.core.errors import UserError

PUBLISHED = (
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
SYNTHETIC = ("cldr_en_de", "cldr_multilingual", "docstrings", "python_manual", "spoken_numbers")
"""Made on the spot, from what is installed: a small twin of each corpus that a kind of model needs."""
CORPORA = (*PUBLISHED, *SYNTHETIC)


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
