"""results/security/fairseq-calls.md lists where fairseq runs code, starts programs, unpickles, unpacks or connects."""

from __future__ import annotations

import re
from pathlib import Path

import fairseq
import fairseq_cli
from dangerous_calls import dangerous_calls

PAGE = Path(__file__).parents[1] / "results/security/fairseq-calls.md"
ROW = re.compile(r"\| `(fairseq\S*\.py):([\d, ]+)` \| `(\S+)` \| ([^|]+) \| ([^|]+) \|")


def listed() -> list[tuple[str, str]]:
    rows = [row.groups() for row in map(ROW.fullmatch, PAGE.read_text().splitlines()) if row]
    return [(f"{file}:{line}", call) for file, lines, call, *_ in rows for line in lines.split(", ")]


def test_the_list_is_that_of_the_installed_package() -> None:
    packages = (Path(next(iter(package.__path__))) for package in (fairseq, fairseq_cli))
    places = set().union(*(dangerous_calls(package, leave_out="examples") for package in packages))
    assert sorted(listed()) == sorted(places)
