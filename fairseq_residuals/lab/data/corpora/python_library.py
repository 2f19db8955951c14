"""Text that Python brings along: docstrings of its standard library, and its manual."""

from __future__ import annotations

import ast
import hashlib
import platform
import re
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

from fairseq_residuals.lab.data import clean
from fairseq_residuals.lab.data.corpora import wikitext103
from fairseq_residuals.lab.data.corpora.gigaword import ORG_DATA, ORIGINAL
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.parallel_text import Pipeline
from fairseq_residuals.lab.data.steps import Step

BODY, TITLE = range(5, 61), range(3, 26)
"""Words that they may have; a longer body is cut."""
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
HELD_OUT_FILES = 5
"""One file in so many is for validation and test."""


class Headline(NamedTuple):
    body: str
    title: str


def gigaword_words(prose: str) -> list[str]:
    """Return words as Gigaword's public copies have them: lower-case, punctuation apart, # for each digit."""
    return re.sub(r"\d", "#", " ".join(re.findall(r"\w+|[^\w\s]", prose.lower()))).split()


def headlines_of(source: str) -> Iterator[Headline]:
    """Yield what comes after the first line of each docstring, and that line if it is a whole sentence."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first, _, rest = (ast.get_docstring(node) or "").partition("\n")
        title, body = gigaword_words(first), gigaword_words(rest)[: BODY.stop - 1]
        whole = first.endswith(".") or rest.startswith("\n")
        if whole and len(title) in TITLE and len(body) in BODY:
            yield Headline(" ".join(body), " ".join(title))


def library() -> Iterator[tuple[str, str]]:
    """Name and text of the standard library's modules, in order."""
    top = Path(sysconfig.get_path("stdlib"))
    for path in sorted(top.rglob("*.py")):
        name = path.relative_to(top)
        if LEFT_OUT.isdisjoint(name.parts):
            try:
                with tokenize.open(path) as file:
                    yield name.as_posix(), file.read()
            except SyntaxError:  # a file in an encoding that does not exist, which tests of the library need
                continue


def divided(modules: Iterator[tuple[str, str]]) -> dict[str, list[Headline]]:
    """Return the splits: a module's docstrings are all in one, and no body and no title comes twice."""
    splits: dict[str, list[Headline]] = {"train": [], "dev": [], "test": []}
    seen: set[tuple[str, str]] = set()
    for name, source in modules:
        number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % (2 * HELD_OUT_FILES)
        split = {0: "dev", 1: "test"}.get(number, "train")
        for headline in headlines_of(source):
            keys = {("body", headline.body), ("title", headline.title)}
            if seen.isdisjoint(keys):
                seen |= keys
                splits[split].append(headline)
    return splits


def made_headlines(most: int, held_out: int, merges: int, summary: str) -> Variant:
    """Return the variant of at most so many pairs to train on, and of so many to validate on and to test."""

    def make(folder: Path) -> None:
        (folder / "org_data").mkdir()
        for split, headlines in divided(library()).items():
            chosen = headlines[: most if split == "train" else held_out]
            clean.write(chosen, [folder / f"org_data/{split}.{side}.txt" for side in ("src", "tgt")])

    def plan(job: Job) -> tuple[Step, ...]:
        made_of = {"most": most, "held_out": held_out, "Python": platform.python_version()}
        assert ORIGINAL.bpe is not None
        recipe = replace(ORIGINAL, bpe=replace(ORIGINAL.bpe, merges=merges), lines={})
        return Pipeline(recipe, job, {ORG_DATA: Step("work/docstrings", make, made_of)}).results()

    return Variant(plan, (), summary, {"test": "test"})


DOCSTRINGS = Corpus(
    "docstrings",
    {
        "made": made_headlines(20_000, 300, 2000, "at most 20,000 docstrings"),
        "tiny": made_headlines(100, 10, 100, "100 docstrings, to try every step"),
    },
)
"""Headlines, as Gigaword's, of the docstrings in Python's standard library: the text and its first line."""

UNKNOWN = "<unk>"
EVERY = 8
"""Of so many topics one is for validation and one for the test."""

Paragraphs = list[list[str]]


def wikitext_words(prose: str) -> list[str]:
    """Return words, punctuation apart, as in WikiText."""
    return re.findall(r"\w+|[^\w\s]", prose)


def paragraphs_of(articles: Mapping[str, str]) -> dict[str, Paragraphs]:
    """Return the splits, in words: a topic is in one of them, and no paragraph comes twice in any of them."""
    splits: dict[str, Paragraphs] = {"train": [], "valid": [], "test": []}
    seen: set[tuple[str, ...]] = set()
    for number, name in enumerate(sorted(articles)):
        split = {1: "valid", 5: "test"}.get(number % EVERY, "train")
        for block in re.split(r"\n\s*\n", articles[name]):
            paragraph = wikitext_words(block)
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


def made_paragraphs(most: int, held_out: int, least: int, summary: str) -> Variant:
    """Return the variant of at most so many paragraphs, whose words occur at least so often."""

    def make(folder: Path) -> None:
        splits = {
            name: paragraphs[: most if name == "train" else held_out]
            for name, paragraphs in paragraphs_of(topics).items()
        }
        for split, lines in with_unknown(splits, least).items():
            (folder / split).write_text("".join(f" {line} \n" for line in lines), encoding="utf-8")

    def plan(job: Job) -> tuple[Step, ...]:
        made_of = {"most": most, "held_out": held_out, "least": least, "Python": platform.python_version()}
        text = Step("text", make, made_of)
        return (text, wikitext103.binary(job, text))

    return Variant(plan, (), summary, {"test": "test"})


PYTHON_MANUAL = Corpus(
    "python_manual",
    {
        "made": made_paragraphs(10_000, 300, 2, "at most 10,000 paragraphs, words that occur twice"),
        "tiny": made_paragraphs(200, 20, 2, "200 paragraphs, to try every step"),
    },
)
"""Python's reference manual, which ``help()`` shows, in words as WikiText-103 has them."""
