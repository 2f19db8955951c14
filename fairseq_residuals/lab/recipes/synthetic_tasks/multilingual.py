"""One model between English and several languages, in OPUS-100's layout; the text is the Unicode CLDR's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from babel import Locale

from fairseq_residuals.lab.data.corpora.opus100 import ARCHIVE, CORPUS
from fairseq_residuals.lab.data.synthetic.cldr import draw_sentence
from fairseq_residuals.lab.data.synthetic.published_layouts import pack, text
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Row, Sizes, Task, narrow

LANGUAGES = ("de", "es", "fr")
TOP = "opus-100-corpus/v1.0/supervised"


def sentences(seed: int) -> Iterator[dict[str, str]]:
    """Return sentences by language; no two mention the same values, or read the same in any language."""
    rng = random.Random(seed)
    locales = {language: Locale(language) for language in ("en", *LANGUAGES)}
    seen: set[object] = set()
    while True:
        sentence = draw_sentence(rng)
        said = {language: " ".join(sentence.text(locale).split()) for language, locale in locales.items()}
        keys = {frozenset(sentence.items), *said.items()}
        if seen.isdisjoint(keys):
            seen |= keys
            yield said


def make(mirror: Path, sizes: Sizes) -> Mapping[str, Any]:
    """Deal each sentence to one pair of languages and one split: no model meets it in another language."""
    counts = {"train": sizes.examples // len(LANGUAGES), "dev": sizes.held_out // 3, "test": sizes.held_out // 3}
    stream = sentences(seed=0)
    drawn = [next(stream) for _ in range(len(LANGUAGES) * sum(counts.values()))]
    random.Random(0).shuffle(drawn)
    dealt = iter(drawn)
    files: dict[str, bytes] = {}
    for other in LANGUAGES:
        pair = "-".join(sorted(("en", other)))
        for split, count in counts.items():
            chosen = [next(dealt) for _ in range(count)]
            for language in ("en", other):
                name = f"{TOP}/{pair}/opus.{pair}-{split}.{language}"
                files[name] = text(said[language] for said in chosen)
    pack(files, mirror / ARCHIVE.name)
    return {"pieces": sizes.subwords}


def row(architecture: str) -> Row:
    return Row("resi_dual/table4/18l_pre_ln", (f"model._name=transformer_{architecture}_wmt_en_de_18l",))


TASK = Task(
    name="multilingual",
    twin="resi_dual/table4",
    data="one model between English and German, Spanish and French: dates, prices, countries, ... as CLDR has them",
    sizes=Sizes(examples=30_000, updates=500, subwords=1500),
    corpus=CORPUS,
    make=make,
    rows={
        "Post-LN/18": row("post_ln"),
        "Pre-LN/18": row("pre_ln"),
        "B2T/18": row("b2t"),
    },
    scores={"EX": "EX", "XE": "XE"},
    averages={"ALL": ("EX", "XE")},
    metrics=("sacrebleu",),
    overrides=(
        "optimization.lr=[0.001]",
        "dataset.max_tokens=1500",
        "lr_scheduler.warmup_updates=200",
        "model.dropout=0.0",
        "model.attention_dropout=0.0",
        "model.activation_dropout=0.0",
        *narrow(64, 128),
    ),
)
