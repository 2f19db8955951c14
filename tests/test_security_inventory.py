"""results/security/fairseq-calls.md lists where fairseq runs code, starts programs, unpickles, unpacks or connects."""

from __future__ import annotations

import re
from pathlib import Path

import fairseq
import fairseq_cli
import pytest
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


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("run = exec", "exec"),
        ("from builtins import eval as read\nread('1')", "eval"),
        ("import pickle as p\np.load(f)", "pickle.load"),
        ("from pickle import loads as read\nread(b'')", "pickle.loads"),
        ("import numpy as np\nnp.load(f, allow_pickle=True)", "numpy.load"),
        ("import torch.hub\nf(torch.hub.load)", "torch.hub.load"),
        ("import os\nos.system('x')", "os.system"),
        ("from subprocess import Popen\nPopen('x')", "subprocess.Popen"),
        ("from urllib.request import urlopen\nurlopen(x)", "urllib.request.urlopen"),
        ("import requests\npartial(requests.get, x)", "requests.get"),
    ],
)
def test_what_is_found(line: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "package" / "examples").mkdir(parents=True)
    for folder in ("", "examples"):
        (tmp_path / "package" / folder / "module.py").write_text(f"{line}\n")
    place = f"package/module.py:{line.count(chr(10)) + 1}"
    assert dangerous_calls(tmp_path / "package", leave_out="examples") == {(place, name)}
