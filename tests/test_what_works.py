"""The table of what works with each wiring: it is whole, the page says what it says, and a row of it is made anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairseq_residuals import list_variants
from tests.what_works import CHECKS, one_process, outcome, read

ROOT = Path(__file__).parents[1]
TABLE = read(ROOT / "results" / "library" / "what_works.csv")


def test_the_table_is_whole() -> None:
    assert list(TABLE) == list_variants()
    assert all(list(row) == list(CHECKS) for row in TABLE.values())


def test_the_page_names_what_works_with_all() -> None:
    page = " ".join((ROOT / "docs" / "PYTHON.md").read_text().split())
    said = re.search(r"says for each of (\d+) wirings .* work with all: (.*?)\. For FSDP2", page)
    assert said is not None and int(said[1]) == len(TABLE)
    assert said[2].split("; ") == [check for check in CHECKS if not any(row[check] for row in TABLE.values())]


@pytest.mark.parametrize("name", ["depthwise_lstm"])
@pytest.mark.filterwarnings("ignore")
def test_a_row_is_what_the_table_says(name: str) -> None:
    """Of a wiring whose layers share modules, and which rewire refuses."""
    with one_process():
        found = {check: outcome(run, name) for check, run in CHECKS.items()}
    assert found == TABLE[name]
    assert found["rewire, keep"]
