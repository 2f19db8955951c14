"""The documents say what the code does."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_residuals.__main__ import build_parser
from fairseq_residuals.lab.data.corpora import PUBLISHED
from fairseq_residuals.lab.look.list_wirings import (
    ACTIVATIONS,
    EQUATIONS,
    SENTENCES,
    evidence,
    markdown_table,
    summary_table,
)
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.registry import VARIANTS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(("document", "table"), [("README.md", summary_table), ("docs/VARIANTS.md", markdown_table)])
def test_the_table_of_variants_is_current(document: str, table: Callable[[], str]) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    between = text.split("<!-- variants:begin -->\n")[1].split("\n<!-- variants:end -->")[0]
    command = {"README.md": "summary", "docs/VARIANTS.md": "markdown"}[document]
    assert between == table(), f"put the output of `fairseq-residuals list --format {command}` between the markers"


def test_the_readme_is_short() -> None:
    """A stranger reads it in five minutes; everything else is a page in docs/. A new variant may add its row."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    rows = lines[lines.index("<!-- variants:begin -->") : lines.index("<!-- variants:end -->")]
    assert len(lines) - len(rows) <= 168


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_architectures_in_the_documents_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:--arch|_name:) *\n? *((?:transformer|s2t_transformer)_\w+)", text))
    assert {n for n in named if n not in ARCHITECTURES and not n.startswith("transformer_my")} == set()
    if path == ROOT / "README.md":
        assert len(named) >= 1


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_files_in_the_documents_exist(path: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_files_in_code_font_exist(path: Path) -> None:
    """Those below a folder of the repository or of the package; a page about something new may name what is "my_"."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sh|md|csv|ya?ml|json))`", text)
    folders = (ROOT, ROOT / "fairseq_residuals")
    ours = {n for n in named if "my_" not in n and any((f / n.partition("/")[0]).is_dir() for f in folders)}
    assert {n for n in ours if not any((f / n).exists() for f in folders)} == set()


def test_the_readme_names_every_extra() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^pip install '\.\[.*$", text, flags=re.MULTILINE)
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert [extra for extra in extras if not re.search(rf"\b{extra}\b", line)] == []


@pytest.mark.parametrize(
    ("name", "far"),
    [
        ("b2t", SENTENCES),
        ("layer_scalar", ACTIVATIONS),
        ("realformer", ACTIVATIONS),  # its encoder, which is all that was published
        ("keel", EQUATIONS),
        ("depthwise_lstm", EQUATIONS),  # with another implementation of ours
    ],
)
def test_how_far_a_wiring_is_compared(name: str, far: str) -> None:
    assert evidence(VARIANTS[name]) == far


def anchors(path: Path) -> set[str]:
    """What can stand behind # in a link to a page: its headings as GitHub writes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_headings_that_links_lead_to_exist(path: Path) -> None:
    links = re.findall(r"\]\(((?!https?:)[^)#]*)#([\w-]+)\)", path.read_text(encoding="utf-8"))
    pages = [(path.parent / page if page else path, anchor) for page, anchor in links]
    assert [anchor for page, anchor in pages if page.suffix == ".md" and anchor not in anchors(page)] == []


def test_every_corpus_has_a_state() -> None:
    """Tried on a date, never, or impossible."""
    section = (ROOT / "docs/DATA.md").read_text(encoding="utf-8").partition("## State of the sources")[2]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    stated = {name for corpora, state, _ in rows for name in re.findall(r"`(\w+)`", corpora) if state}
    assert stated == set(PUBLISHED)
    assert all(re.match(r"never$|impossible: |20\d\d-\d\d-\d\d: ", state) for _, state, _ in rows)


def test_the_index_names_every_subcommand_and_page() -> None:
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    commands = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert [c for c in commands if f"fairseq-residuals {c}`" not in index] == []
    assert [page.name for page in (ROOT / "docs").glob("[A-Z]*.md") if f"({page.name})" not in index] == ["README.md"]
