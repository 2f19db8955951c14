"""Headlines, as Gigaword's, of the docstrings in Python's standard library: the text and its first line."""

from __future__ import annotations

import ast
import hashlib
import platform
import re
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fairseq_residuals.lab.data.corpora.gigaword import ORG_DATA, ORIGINAL
from fairseq_residuals.lab.data.pipeline.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.pipeline.parallel_text import Pipeline
from fairseq_residuals.lab.data.pipeline.steps import Step
from fairseq_residuals.lab.data.text import clean

BODY, TITLE = range(5, 61), range(3, 26)
"""Words that they may have; a longer body is cut."""
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
HELD_OUT_FILES = 5
"""One file in so many is for validation and test."""


class Headline(NamedTuple):
    body: str
    title: str


def words(prose: str) -> list[str]:
    """Return words as Gigaword's public copies have them: lower-case, punctuation apart, # for each digit."""
    return re.sub(r"\d", "#", " ".join(re.findall(r"\w+|[^\w\s]", prose.lower()))).split()


def headlines_of(source: str) -> Iterator[Headline]:
    """Yield what comes after the first line of each docstring, and that line if it is a whole sentence."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first, _, rest = (ast.get_docstring(node) or "").partition("\n")
        title, body = words(first), words(rest)[: BODY.stop - 1]
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


def collect(modules: Iterator[tuple[str, str]]) -> dict[str, list[Headline]]:
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


def made(most: int, held_out: int, merges: int, summary: str) -> Variant:
    """Return the variant of at most so many pairs to train on, and of so many to validate on and to test."""

    def make(folder: Path) -> None:
        (folder / "org_data").mkdir()
        for split, headlines in collect(library()).items():
            chosen = headlines[: most if split == "train" else held_out]
            clean.write(chosen, [folder / f"org_data/{split}.{side}.txt" for side in ("src", "tgt")])

    def plan(job: Job) -> tuple[Step, ...]:
        made_of = {"most": most, "held_out": held_out, "Python": platform.python_version()}
        assert ORIGINAL.bpe is not None
        recipe = replace(ORIGINAL, bpe=replace(ORIGINAL.bpe, merges=merges), lines={})
        return Pipeline(recipe, job, {ORG_DATA: Step("work/docstrings", make, made_of)}).results()

    return Variant(plan, (), summary, {"test": "test"})


CORPUS = Corpus(
    "docstrings",
    {
        "made": made(20_000, 300, 2000, "at most 20,000 docstrings"),
        "tiny": made(100, 10, 100, "100 docstrings, to try every step"),
    },
)
