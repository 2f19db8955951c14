"""The Unicode CLDR as a corpus: dates, prices, countries, ... in words of English and German.

The sentences are made on the spot (:mod:`fairseq_residuals.lab.data.synthetic`).
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from fairseq_residuals.lab.data.corpora.wmt import B2T
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.moses import Function
from fairseq_residuals.lab.data.parallel_text import Bpe, Parallel, Part, Pipeline
from fairseq_residuals.lab.data.steps import Step
from fairseq_residuals.lab.data.synthetic import make_corpus, write_corpus

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
