"""Translation from English to German: dates, prices, countries, ... as the Unicode CLDR has them in both languages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.data.corpora.wmt14_en_de import B2T
from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Part
from fairseq_residuals.lab.data.synthetic.cldr import make_corpus, write_corpus
from fairseq_residuals.lab.data.text.moses import Function
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Sizes, Task, compared, narrow

NAME = "cldr_en_de"
CLDR = Source(f"{NAME}/", terms="scripts/small/translation.sh makes it")


def part(split: str) -> tuple[Part, ...]:
    return (Part(CLDR, f"{split}.{{lang}}"),)


def untreated(language: str) -> tuple[Function, ...]:
    return ()


TOKENIZED = replace(
    B2T,
    train=part("train"),
    valid=part("valid"),
    tests={"test": part("test")},
    bpe=Bpe(1000),
    dictionary=("--joined-dictionary",),
    lines={},
)
PLAIN = replace(TOKENIZED, treat_train=untreated, treat_held_out=untreated, limits=None, limits_encoded=None)
CORPUS = Corpus(NAME, {"made": TOKENIZED.variant("made from CLDR"), "plain": PLAIN.variant("the same, not tokenized")})


def make(mirror: Path, sizes: Sizes) -> Mapping[str, Any]:
    counts = {"train": sizes.examples, "valid": sizes.held_out, "test": sizes.held_out}
    folder = mirror / CLDR.name
    folder.mkdir()
    write_corpus(folder, make_corpus(counts))
    return {"lines": counts, "merges": sizes.subwords}


TASK = Task(
    name="translation",
    twin="b2t/table1",
    data="English to German: dates, prices, countries, ... as CLDR has them in both languages",
    sizes=Sizes(examples=30_000, updates=600, subwords=1000),
    corpus=CORPUS,
    make=make,
    rows=compared("18L-18L", "b2t/table1/18l"),
    scores={"BLEU": "BLEU"},
    metrics=("sacrebleu",),
    overrides=(
        f"recipe.corpus={NAME}",
        "recipe.variant=null",
        "recipe.scores.BLEU={set:test,metric:sacrebleu,hypotheses:detokenized,references:raw,retokenize:null,flags:{}}",
        "dataset.max_tokens=1500",
        "lr_scheduler.warmup_updates=200",
        "model.dropout=0.0",
        "optimization.clip_norm=1.0",
        *narrow(64, 128),
    ),
)
