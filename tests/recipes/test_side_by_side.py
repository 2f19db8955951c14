"""Several runs of a table at a time, with stand-ins for fairseq's programs."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from recipe_files import job_of, read_table

from fairseq_residuals.lab.recipes import reproduce, runner
from fairseq_residuals.lab.recipes.runner import Runner
from fairseq_residuals.lab.recipes.tables import read_records

ROWS = ["16L/Post-LN", "16L/Pre-LN", "16L/B2T"]
MEETS_ANOTHER = """
touch {here}/at_work.$$
for i in $(seq 600); do
    [ $(ls {here}/at_work.* | wc -l) -ge 2 ] && echo 'FloatingPointError: gradients are Nan/Inf' && exit 1
    sleep 0.1
done
exit 2
"""
"""A training that diverges when a second one is under way, and fails where it stays alone."""


def test_the_runs_of_a_table_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    prepared = tmp_path / "data/wikitext103/prepared.json"
    scripts = {
        "fairseq-hydra-train": MEETS_ANOTHER.format(here=tmp_path),
        "fairseq-residuals": f"echo prepared >> {tmp_path}/prepared; echo {{}} > {prepared}",
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setattr(runner.sysconfig, "get_path", lambda name: str(programs))
    settings = replace(job_of("x", gpus=0).settings, data=tmp_path / "data", out=tmp_path / "out")
    table, results = read_table("b2t/table4"), tmp_path / "results.csv"
    reproduce.run(table, reproduce.jobs_of(table, settings, ROWS, None), results, Runner([{}, {}]))
    # the corpus that all need was prepared once, before the first of them
    assert (tmp_path / "prepared").read_text() == "prepared\n"
    assert {(r.row, r.value) for r in read_records(results)} == {(row, "failed") for row in ROWS}
    logs = list((tmp_path / "out").rglob("train.*.log"))
    assert len(logs) == 3 and all("FloatingPointError" in log.read_text() for log in logs)
