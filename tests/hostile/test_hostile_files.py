"""No file that is read runs, computes, or takes more time and memory than a file of its size may."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hostile_files import cases

CORPUS = [case._replace(contents=b"") for case in cases() if case.reader != "tsv"]  # which fairseq alone reads
CASES = {case.name: case for case in CORPUS}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, str]]:
    folder = tmp_path_factory.mktemp("hostile")
    reader = Path(__file__).with_name("read_all.py")
    ended = subprocess.run([sys.executable, reader, folder], capture_output=True, text=True, timeout=300, check=False)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, f"{lines[-1:]} {ended.stderr[-2000:]}"
    assert not list(folder.glob("**/called")) and not list(folder.glob("unpacked/**/passwd"))
    return {name: (seconds, result) for name, seconds, result in lines}


def test_the_corpus_is_large_and_its_names_differ() -> None:
    assert len(CASES) >= 150
    assert max(Counter(case.name for case in CORPUS).values()) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_with_a_true_sentence(name: str, outcomes: dict[str, tuple[float, str]]) -> None:
    seconds, result = outcomes[name]
    reader, sentence = CASES[name].reader, CASES[name].sentence
    assert result.startswith("refused: "), result[:500]
    assert re.search(sentence, result), result[:500]
    # the file's name; of a <seg> its text is shown
    assert reader == "sgm" or re.search(rf"\d+\.{reader}", result), result[:500]
    assert len(result) < 500
    assert seconds < 2
