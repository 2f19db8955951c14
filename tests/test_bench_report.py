"""From rounds to tables: the order of processes, medians, ratios and failures."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_cases import TINY

from fairseq_residuals.lab.bench import rounds
from fairseq_residuals.lab.bench.command import Report
from fairseq_residuals.lab.bench.entries import Case, Entry
from fairseq_residuals.lab.bench.fairseq_models import parse
from fairseq_residuals.lab.bench.library import ENTRIES
from fairseq_residuals.lab.bench.rounds import Failed, Line, measure, work

FAILING = """
import os, signal, torch
from fairseq_residuals.wirings.core.errors import UserError

class Decoder:
    def __init__(self, **sizes):
        match os.environ["FAILS"]:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "too large":
                torch.empty(2**60, dtype=torch.uint8)
        raise UserError("mmap_max is " + os.environ["MALLOC_MMAP_MAX_"])
"""


def measured(step: float, peak: int = 2**20) -> dict[str, Any]:
    phases = {"forward": step / 2, "backward": step / 4, "optimizer": step / 8}
    return {"step": step, **phases, "tokens": 15, "parameters": 7, "peak_bytes": peak}


def test_processes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(mode: str, entry: Entry, case: Case, timeout: float) -> Any:
        calls.append(entry.name)
        if calls[-1] == "b2t":
            raise Failed("crashed")
        return measured(float(len(calls)))

    monkeypatch.setattr(rounds, "work", fake)
    lines = [Line(parse(name), TINY) for name in ("stock", "b2t", "post_ln")]
    assert list(measure(lines, "train", 2, 1)) == [1, 2]
    # what has failed is not tried again
    assert calls == ["stock", "b2t", "post_ln", "stock", "post_ln"]
    assert [m["step"] for m in lines[0].found] == [1, 4]
    assert lines[1].failure == "crashed" and not lines[1].found


def lines_of(*steps: tuple[str, list[float]]) -> list[Line]:
    return [Line(parse(name), TINY, [measured(s, int(s * 2**20)) for s in own]) for name, own in steps]


def test_the_numbers_of_a_line() -> None:
    lines = lines_of(("stock", [3.0, 1.0, 2.0]), ("b2t", [5.0, 4.0, 8.0]))
    report = Report("train", lines, torch.device("cpu"))
    stock, b2t = (dict(zip(report.columns, row, strict=True)) for row in report.rows())
    assert (b2t["tokens/s"], b2t["least"], b2t["most"]) == (15 / 5, 15 / 8, 15 / 4)
    assert (b2t["step s"], b2t["forward s"], b2t["backward s"], b2t["optimizer s"]) == (5, 2.5, 1.25, 0.625)
    assert (stock["x stock"], b2t["x stock"], stock["x memory"], b2t["x memory"]) == (1, 2 / 5, 1, 5 / 2)
    assert (b2t["peak MiB"], b2t["parameters"]) == (5, 7)
    (row, _) = csv.DictReader(io.StringIO(report.csv()))
    assert float(row["tokens/s"]) * float(row["step s"]) == 15 and row["case vocabulary"] == "40"
    assert report.markdown().count("\n| ") == 4 and "date 2" in report.markdown()
    assert ("no GPU" in report.markdown()) == (not torch.cuda.is_available())


def test_a_failure_is_a_line_and_a_remark() -> None:
    cases = [TINY, replace(TINY, layers="3")]
    lines = [Line(parse(n), c, [measured(1.0)] if n == "b2t" else []) for c in cases for n in ("b2t", "stock-lean")]
    for line in lines[1::2]:
        line.failure = "not installed"
    lines[2].failure = "not done within 1 s"
    report = Report("train", lines, torch.device("cpu"))
    assert report.rows()[1] == ["stock-lean", "2", "16x32x2", "fp32", *[None] * (len(report.columns) - 4)]
    remarks = report.remarks()
    assert "stock-lean (2 layers, 16x32x2, fp32; 3 layers, 16x32x2, fp32): not installed." in remarks
    assert "b2t (3 layers, 16x32x2, fp32): not done within 1 s." in remarks
    assert [row["failure"] for row in csv.DictReader(io.StringIO(report.csv()))].count("not installed") == 2


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", r"out of memory, or killed by hand \(SIGKILL\)"),
        ("too large", "out of memory: .*can't allocate memory"),
        ("refused", "not measured: mmap_max is 7"),
    ],
)
def test_a_process_that_fails_says_why(how: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x_transformers.py").write_text(FAILING)
    environment = {"PYTHONPATH": str(tmp_path), "FAILS": how, "MALLOC_MMAP_MAX_": "7"}
    with pytest.raises(Failed, match=said):
        work("library", replace(ENTRIES["x-transformers"], environment=environment), TINY, 300)
