"""IWSLT14 German-English as fairseq's prepare-iwslt14.sh makes it: lower-cased, 10,000 joint merges.

The test set is five sets of earlier years. One of them, TEDX.dev2012, has 72 misaligned lines; they stay, so that
scores compare with everybody's. ResiDual and Admin share all embeddings, hence the joined dictionary; fairseq's own
example keeps the dictionaries apart (variant separate).
"""

from __future__ import annotations

from dataclasses import replace

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Parallel, Part
from fairseq_residuals.lab.data.text.clean import Limits
from fairseq_residuals.lab.data.text.moses import Function, Lowercase, PlainApostrophe, Tokenize

TALKS = Source(
    "iwslt14-de-en.tgz",
    (
        "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",
        "https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz",
    ),
)
TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def train(language: str) -> tuple[Function, ...]:
    return (Tokenize(language), Lowercase())


def test(language: str) -> tuple[Function, ...]:
    return (PlainApostrophe(), Tokenize(language), Lowercase())


JOINED = Parallel(
    languages=("de", "en"),
    train=(Part(TALKS, "de-en/train.tags.de-en.{lang}", "ted"),),
    valid=23,
    tests={"test": tuple(Part(TALKS, f"de-en/IWSLT14.{name}.de-en.{{lang}}.xml", "sgm") for name in TESTS)},
    treat_train=train,
    treat_held_out=test,
    limits=Limits(1, 175, 1.5),
    bpe=Bpe(10000),
    lines={"test": 6750},
)
SEPARATE = replace(JOINED, dictionary=())

CORPUS = Corpus(
    "iwslt14_de_en",
    {
        "joined": JOINED.variant("one dictionary for both languages (ResiDual, Admin)"),
        "separate": SEPARATE.variant("a dictionary each (fairseq's example, T-Fixup)"),
    },
)
