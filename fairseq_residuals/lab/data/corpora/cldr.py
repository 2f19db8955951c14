"""The Unicode CLDR as corpora: dates, prices, countries, ... in words of several languages.

The sentences are made on the spot (:mod:`fairseq_residuals.lab.data.synthetic`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from fairseq_residuals.lab.data import clean, sentence_pieces
from fairseq_residuals.lab.data.corpora.wmt import B2T
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.moses import Function
from fairseq_residuals.lab.data.parallel_text import Bpe, Parallel, Part, Pipeline
from fairseq_residuals.lab.data.sentence_pieces import Pair, Pieces
from fairseq_residuals.lab.data.steps import Step
from fairseq_residuals.lab.data.synthetic import make_corpus, said_in, write_corpus

SENTENCES = Source("sentences")


def part(split: str) -> tuple[Part, ...]:
    return (Part(SENTENCES, f"{split}.{{lang}}"),)


def untreated(language: str) -> tuple[Function, ...]:
    return ()


TOKENIZED = replace(
    B2T,
    train=part("train"),
    valid=part("valid"),
    tests={"test": part("test")},
    dictionary=("--joined-dictionary",),
    lines={},
)
PLAIN = replace(TOKENIZED, treat_train=untreated, treat_held_out=untreated, limits=None, limits_encoded=None)


def made_pairs(recipe: Parallel, pairs: int, held_out: int, merges: int, summary: str) -> Variant:
    """Return the variant of so many pairs to train on, and of so many to validate on and to test.

    Args:
        recipe: :data:`TOKENIZED`, or :data:`PLAIN` for sentences that are only split into subwords.
        merges: of the BPE of both languages together.
    """
    counts = {"train": pairs, "valid": held_out, "test": held_out}

    def make(folder: Path) -> None:
        write_corpus(folder, make_corpus(counts))

    def plan(job: Job) -> tuple[Step, ...]:
        step = Step("work/sentences", make, {"counts": counts, "Babel": version("Babel")})
        return Pipeline(replace(recipe, bpe=Bpe(merges)), job, {SENTENCES: step}).results()

    return Variant(plan, (), summary, {"test": "test"})


CLDR_EN_DE = Corpus(
    "cldr_en_de",
    {
        "made": made_pairs(TOKENIZED, 30_000, 300, 1000, "30,000 pairs, tokenized"),
        "plain": made_pairs(PLAIN, 30_000, 1000, 1000, "30,000 pairs, not tokenized"),
        "tiny": made_pairs(TOKENIZED, 100, 10, 90, "100 pairs, to try every step"),
    },
)
"""Translation from English to German."""

LANGUAGES = ("de", "es", "fr")


def write_pairs(folder: Path, languages: tuple[str, ...], counts: dict[str, int]) -> None:
    """Deal each sentence to one pair of languages and one split: no model meets it in another language."""
    stream = said_in(0, languages)
    drawn = [next(stream) for _ in range(len(languages) * sum(counts.values()))]
    random.Random(0).shuffle(drawn)
    dealt = iter(drawn)
    for other in languages:
        pair = folder / "-".join(sorted(("en", other)))
        pair.mkdir()
        for split, count in counts.items():
            chosen = [next(dealt) for _ in range(count)]
            texts = ((said["en"], said[other]) for said in chosen)
            clean.write(texts, [pair / f"{split}.{language}" for language in ("en", other)])


def made_multilingual(
    languages: tuple[str, ...], sentences_of_a_pair: int, held_out: int, pieces: int, summary: str
) -> Variant:
    """Return the variant between English and these languages."""
    counts = {"train": sentences_of_a_pair, "dev": held_out, "test": held_out}

    def pairs(folder: Path) -> Iterator[Pair]:
        return (Pair.of(pair, "{split}.{language}") for pair in sorted(folder.glob("*-*")))

    def plan(job: Job) -> tuple[Step, ...]:
        described = {"languages": languages, "counts": counts, "Babel": version("Babel")}
        step = Step("work/sentences", lambda folder: write_pairs(folder, languages, counts), described)
        return sentence_pieces.steps(job, step, pairs, Pieces("bpe", pieces), Source("sentences"))

    return Variant(plan, (), summary, {})


CLDR_MULTILINGUAL = Corpus(
    "cldr_multilingual",
    {
        "made": made_multilingual(LANGUAGES, 10_000, 100, 1500, "10,000 pairs of English and each of de, es, fr"),
        "tiny": made_multilingual(("de", "fr"), 40, 4, 130, "40 pairs of each of de and fr, to try every step"),
    },
)
"""One model between English and German, Spanish and French, as for OPUS-100; the text is the Unicode CLDR's."""
