"""Headlines in Gigaword's layout: of the docstrings in Python's standard library, the text and its first line."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_residuals.lab.data.corpora.gigaword import CORPUS, ORG_DATA
from fairseq_residuals.lab.data.synthetic.published_layouts import pack, text
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Sizes, Task, compared, narrow

BODY, TITLE = range(5, 61), range(3, 26)
"""Words that they may have; a longer body is cut."""
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
HELD_OUT_FILES = 5
"""One file in so many is for validation and test."""


class Pair(NamedTuple):
    body: str
    title: str


def words(prose: str) -> list[str]:
    """Return words as Gigaword's public copies have them: lower-case, punctuation apart, # for each digit."""
    return re.sub(r"\d", "#", " ".join(re.findall(r"\w+|[^\w\s]", prose.lower()))).split()


def pairs_of(source: str) -> Iterator[Pair]:
    """Yield what comes after the first line of each docstring, and that line if it is a whole sentence."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first, _, rest = (ast.get_docstring(node) or "").partition("\n")
        title, body = words(first), words(rest)[: BODY.stop - 1]
        whole = first.endswith(".") or rest.startswith("\n")
        if whole and len(title) in TITLE and len(body) in BODY:
            yield Pair(" ".join(body), " ".join(title))


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


def collect(modules: Iterator[tuple[str, str]]) -> dict[str, list[Pair]]:
    """Return the splits: a module's docstrings are all in one, and no body and no title comes twice."""
    splits: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    seen: set[tuple[str, str]] = set()
    for name, source in modules:
        number = int(hashlib.sha256(name.encode()).hexdigest(), 16) % (2 * HELD_OUT_FILES)
        split = {0: "dev", 1: "test"}.get(number, "train")
        for pair in pairs_of(source):
            keys = {("body", pair.body), ("title", pair.title)}
            if seen.isdisjoint(keys):
                seen |= keys
                splits[split].append(pair)
    return splits


def make(mirror: Path, sizes: Sizes) -> Mapping[str, Any]:
    files: dict[str, bytes] = {}
    counts: dict[str, int] = {}
    for split, pairs in collect(library()).items():
        chosen = pairs[: sizes.examples if split == "train" else sizes.held_out]
        counts["valid" if split == "dev" else split] = len(chosen)
        files[f"org_data/{split}.src.txt"] = text(pair.body for pair in chosen)
        files[f"org_data/{split}.tgt.txt"] = text(pair.title for pair in chosen)
    pack(files, mirror / ORG_DATA.name)
    return {"lines": counts, "merges": sizes.subwords}


TASK = Task(
    name="summarization",
    twin="b2t/table3",
    data="docstrings of Python's standard library: from the text to the first line",
    sizes=Sizes(examples=20_000, updates=350, subwords=2000),
    corpus=CORPUS,
    make=make,
    variant="org_data",
    rows=compared("18L-18L", "b2t/table3/18l"),
    scores={name: name for name in ("R-1", "R-2", "R-L")},
    metrics=("rouge", "rouge_unstemmed"),
    overrides=(
        "dataset.max_tokens=2500",
        "lr_scheduler.warmup_updates=200",
        "model.dropout=0.1",
        "optimization.clip_norm=1.0",
        *narrow(64, 128),
    ),
)
