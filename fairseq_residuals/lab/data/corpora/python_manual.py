"""Python's reference manual, which ``help()`` shows, in words as WikiText-103 has them."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from pydoc_data.topics import topics

from fairseq_residuals.lab.data.corpora import wikitext103
from fairseq_residuals.lab.data.pipeline.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.pipeline.steps import Step

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


def made(most: int, held_out: int, least: int, summary: str) -> Variant:
    """Return the variant of at most so many paragraphs, whose words occur at least so often."""

    def make(folder: Path) -> None:
        splits = {
            name: paragraphs[: most if name == "train" else held_out] for name, paragraphs in collect(topics).items()
        }
        for split, lines in with_unknown(splits, least).items():
            (folder / split).write_text("".join(f" {line} \n" for line in lines), encoding="utf-8")

    def plan(job: Job) -> tuple[Step, ...]:
        made_of = {"most": most, "held_out": held_out, "least": least, "Python": platform.python_version()}
        text = Step("text", make, made_of)
        return (text, wikitext103.binary(job, text))

    return Variant(plan, (), summary, {"test": "test"})


CORPUS = Corpus(
    "python_manual",
    {
        "made": made(10_000, 300, 2, "at most 10,000 paragraphs, words that occur twice"),
        "tiny": made(200, 20, 2, "200 paragraphs, to try every step"),
    },
)
