"""A language model in WikiText-103's layout: the reference manual of Python that its interactive help has."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from fairseq_residuals.lab.data.corpora.wikitext103 import ARTICLES, CORPUS, FILES
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Sizes, Task, compared

UNKNOWN = "<unk>"
EVERY = 8
"""Of so many topics one is for validation and one for the test."""

Paragraphs = list[list[str]]


def words(prose: str) -> list[str]:
    """Return words, punctuation apart, as in WikiText."""
    return re.findall(r"\w+|[^\w\s]", prose)


def collect(articles: Mapping[str, str]) -> dict[str, Paragraphs]:
    """Return the splits, in words: a topic is in one of them, and no paragraph comes twice in any of them."""
    splits: dict[str, Paragraphs] = {"train": [], "valid": [], "test": []}
    seen: set[tuple[str, ...]] = set()
    for number, name in enumerate(sorted(articles)):
        split = {1: "valid", 5: "test"}.get(number % EVERY, "train")
        for block in re.split(r"\n\s*\n", articles[name]):
            paragraph = words(block)
            if paragraph and tuple(paragraph) not in seen:
                seen.add(tuple(paragraph))
                splits[split].append(paragraph)
    return splits


def with_unknown(splits: Mapping[str, Paragraphs], least: int) -> dict[str, list[str]]:
    """Return the lines; words that occur fewer than ``least`` times in training are unknown everywhere."""
    counts = Counter(word for paragraph in splits["train"] for word in paragraph)
    known = {word for word, count in counts.items() if count >= least}

    def line(paragraph: Iterable[str]) -> str:
        return " ".join(word if word in known else UNKNOWN for word in paragraph)

    return {split: [line(paragraph) for paragraph in paragraphs] for split, paragraphs in splits.items()}


def make(mirror: Path, sizes: Sizes) -> Mapping[str, Any]:
    splits = collect(topics)
    held_out = {split: splits[split][: sizes.held_out] for split in ("valid", "test")}
    lines = with_unknown({"train": splits["train"][: sizes.examples], **held_out}, sizes.subwords)
    with zipfile.ZipFile(mirror / ARTICLES.name, "w") as archive:
        for split, paragraphs in lines.items():
            archive.writestr(FILES[split], "".join(f" {line} \n" for line in paragraphs))
    return {"lines": {split: len(paragraphs) for split, paragraphs in lines.items()}}


CONTEXT, BLOCK = 96, 128


def score(subset: str) -> str:
    return (
        f"recipe.scores.{subset.capitalize()}="
        f"[{{set:{subset},flags:{{context_window:0}}}},{{set:{subset},flags:{{context_window:{CONTEXT}}}}}]"
    )


TASK = Task(
    name="language_model",
    twin="b2t/table4",
    data="the reference manual of Python that help() shows, in words",
    sizes=Sizes(examples=10_000, updates=400, subwords=2),
    corpus=CORPUS,
    make=make,
    rows=compared("16L", "b2t/table4/16l"),
    scores={"Valid": "Valid", "Test": "Test"},
    metrics=("ppl_context_0", f"ppl_context_{CONTEXT}"),
    overrides=(
        f"task.tokens_per_sample={BLOCK}",
        "dataset.max_tokens=2048",
        "lr_scheduler.warmup_updates=100",
        "optimization.clip_norm=1.0",
        "model.dropout=0.1",
        "model.attention_dropout=0.0",
        "model.relu_dropout=0.0",
        *(f"model.decoder_{name}_dim=96" for name in ("embed", "input", "output")),
        "model.decoder_ffn_embed_dim=192",
        "model.decoder_attention_heads=4",
        "model.adaptive_input_cutoff='500,1500'",
        "model.adaptive_softmax_cutoff='500,1500'",
        f"recipe.evaluate.flags.tokens_per_sample={BLOCK}",
        score("valid"),
        score("test"),
    ),
)
