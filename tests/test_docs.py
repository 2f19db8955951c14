"""The documents say what the code does."""

from __future__ import annotations

import csv
import re
import tomllib
from pathlib import Path

import pytest

from fairseq_residuals.__main__ import build_parser
from fairseq_residuals.lab.data.corpora import PUBLISHED
from fairseq_residuals.lab.look.list_wirings import (
    ACTIVATIONS,
    EQUATIONS,
    SENTENCES,
    evidence,
    summary_table,
)
from fairseq_residuals.lab.site import facts
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.registry import VARIANTS

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
REPORTS = sorted((ROOT / "results").rglob("*.md"))
"""What programs printed, and what was written of it at that time."""


def prose(path: Path) -> str:
    """A page without its code."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_table_of_wirings_is_current() -> None:
    table = (ROOT / "results/wirings.md").read_text(encoding="utf-8").partition("<!-- wirings -->\n")[2]
    assert table == f"{summary_table()}\n", "put the output of `fairseq-residuals list --format summary` below the mark"


def test_the_readme_has_what_people_search_for_on_one_screen() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [word for word in ("fairseq on Python 3.12", "weights_only", "omegaconf<2.1") if word not in text] == []
    named = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert len(named) == 8 and set(named) <= set(VARIANTS)
    assert len(prose(ROOT / "README.md").split()) <= 900


def test_how_many_wirings_were_trained() -> None:
    with (ROOT / "results/small/variants-18l.csv").open(encoding="utf-8", newline="") as file:
        trained = {row["row"] for row in csv.DictReader(file)}
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    assert f"{len(trained)} wirings were trained" in readme
    compared = {row["entry"].partition("@")[0] for row in facts.read_results()["compare"]}
    assert compared - trained == {"mudd"} and "MUDD aside, the others are not trained by us" in readme


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_architectures_in_the_documents_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"(?:--arch|_name:) *\n? *((?:transformer|s2t_transformer)_\w+)", text))
    assert {n for n in named if n not in ARCHITECTURES and not n.startswith("transformer_my")} == set()
    if path == ROOT / "README.md":
        assert len(named) >= 1


@pytest.mark.parametrize("path", [*DOCUMENTS, *REPORTS], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_in_the_documents_exist(path: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_files_in_code_font_exist(path: Path) -> None:
    """Those below a folder of the repository or of the package; a page about something new may name what is "my_"."""
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sh|md|csv|ya?ml|json))`", prose(path))
    folders = (ROOT, ROOT / "fairseq_residuals")
    ours = {n for n in named if "my_" not in n and any((f / n.partition("/")[0]).is_dir() for f in folders)}
    assert {n for n in ours if not any((f / n).exists() for f in folders)} == set()


def test_the_readme_names_every_python() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    ((first, last),) = re.findall(r"Python 3\.(\d+) to 3\.(\d+)", text)
    served = tuple(f"3.{minor}" for minor in range(int(first), int(last) + 1))
    classified = tuple(c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: 3\.\d+$", c))
    assert served == classified and project["requires-python"].startswith(f">={classified[0]}")


def test_no_page_installs_this_package_by_its_name() -> None:
    """No registry has it."""
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    assert re.findall(r"pip install [^\n`]*\bfairseq[-_]residuals\b(?!\.)", pages) == []


def test_the_readme_names_every_extra() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^pip install -e '\.\[.*$", text, flags=re.MULTILINE)
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
    headings = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*DOCUMENTS, *REPORTS], ids=lambda p: str(p.relative_to(ROOT)))
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


def test_a_wiring_is_called_so() -> None:
    """In every help text and page; ``--variants`` is the older name of ``--wirings``, and corpora come in variants."""
    commands = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    texts = {name: parser.format_help() for name, parser in commands.items() if name != "prepare"}
    texts |= {
        path.name: re.sub(r"`[^`\n]+`|\]\(.*?\)", "", path.read_text()) for path in DOCUMENTS if path.name != "DATA.md"
    }
    texts = {
        name: re.sub(r"^```.*?^```|--variants|register_variant", "", text, flags=re.S | re.M)
        for name, text in texts.items()
    }
    found = {name: re.findall(r".*\b(?:variants?|sweeps?)\b.*", text) for name, text in texts.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


GALLERY = ROOT / "docs/gallery"
NUMBERS = {
    "debian_translation": "debian/translation-18l-128.csv",
    "race": "small/variants-18l.csv",
    "race_warmup": "small/variants-18l-no-warm-up.csv",
    "rates_over_depth": "small/rates-over-depth/18l.csv",
}
"""Numbers under results/ of the pictures that results/ shows; of the others, NAME.csv lies beside NAME.png."""


def test_pictures_are_shown_and_have_their_numbers() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *REPORTS])
    pictures = {picture.stem for picture in GALLERY.glob("*.png")}
    assert {name for name in pictures if f"gallery/{name}.png" not in pages} == set()
    files = {
        name: ROOT / "results" / NUMBERS[name] if name in NUMBERS else GALLERY / f"{name}.csv" for name in pictures
    }
    assert {name for name, file in files.items() if not file.exists()} == set()
