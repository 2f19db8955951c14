"""The corpora: which module has which. A corpus has its name there, in capitals.

Those of the papers come first, then text that people wrote, then a synthetic one.
"""

from __future__ import annotations

import importlib

from fairseq_residuals.lab.data.corpus import Corpus
from fairseq_residuals.wirings.core.errors import UserError

PUBLISHED = {
    "wmt14_en_de": "wmt",
    "wmt17_en_de": "wmt",
    "wmt14_en_fr": "wmt",
    "wmt15_cs_en": "wmt",
    "iwslt14_de_en": "translation",
    "joeynmt_de_en": "translation",
    "zh_en": "translation",
    "opus100": "opus100",
    "gigaword": "gigaword",
    "wikitext103": "wikitext103",
    "librispeech": "librispeech",
    "debian": "debian",
}
CORPORA = PUBLISHED | {"cldr_en_de": "cldr"}
"""All corpora; the last is made on the spot, from what is installed."""


def find_corpus(name: str) -> Corpus:
    """Return the corpus of that name.

    Raises:
        UserError: there is none of that name, or a library that it needs is not installed.
    """
    if name not in CORPORA:
        raise UserError(f"there is no corpus {name}: choose one of {', '.join(CORPORA)}")
    try:
        module = importlib.import_module(f"{__name__}.{CORPORA[name]}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{name} needs the library {error.name}, which is not there: in the clone, pip install -e"
            " '.[text,speech,demo]'"
        ) from error
    corpus: Corpus = getattr(module, name.upper())
    return corpus
