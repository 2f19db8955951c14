"""Several runs of a table at a time, with stand-ins for fairseq's programs."""

from __future__ import annotations

from pathlib import Path

import test_recipe_steps
from recipe_files import job_of, read_table

from fairseq_residuals.lab.recipes import reproduce
from fairseq_residuals.lab.recipes.runner import Runner
from fairseq_residuals.lab.recipes.tables import read_records

programs = test_recipe_steps.programs
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


def test_the_runs_of_a_table_side_by_side(tmp_path: Path, programs) -> None:
    install, calls = programs
    prepared = tmp_path / "data/wikitext103/prepared.json"
    install(fairseq_hydra_train=MEETS_ANOTHER.format(here=tmp_path), fairseq_residuals=f"echo {{}} > {prepared}")
    settings = job_of("x", gpus=0, data=tmp_path / "data", out=tmp_path / "out").settings
    table, results = read_table("b2t/table4"), tmp_path / "results.csv"
    reproduce.run(
        table, reproduce.jobs_of(table, settings, ROWS, None), results, Runner([{"OMP_NUM_THREADS": "3"}] * 2)
    )
    # the corpus that all need was prepared once, before the first of them
    assert len([call for call in calls() if call.startswith("fairseq-residuals")]) == 1
    records = read_records(results)
    assert {(r.row, r.value) for r in records} == {(row, "failed") for row in ROWS}
    assert all(r.device.endswith(", threads: 3") for r in records)
    logs = list((tmp_path / "out").rglob("train.*.log"))
    assert len(logs) == 3 and all("FloatingPointError" in log.read_text() for log in logs)
