"""Reproduce the cells of a table: every run that they need, once, and a record of each score."""

from __future__ import annotations

import itertools
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path

import torch

from fairseq_residuals.experiments.evaluate import Score, check_references, expected_metrics, score_commands
from fairseq_residuals.experiments.job import Job, Settings
from fairseq_residuals.experiments.recipe import Measurement
from fairseq_residuals.experiments.runner import Run, Runner
from fairseq_residuals.experiments.stages import Diverged, Stages, hours, is_prepared, release
from fairseq_residuals.experiments.tables import FAILED, Record, append, read_records
from fairseq_residuals.experiments.tables.cells import Cell, TableRecipe
from fairseq_residuals.experiments.workspace import commit

Work = dict[Job, list[Cell]]
"""Each run with the cells that it is for."""


def jobs_of(table: TableRecipe, settings: Settings, rows: Sequence[str] | None, seeds: Sequence[int] | None) -> Work:
    """Return the runs that some rows of a table need, in the table's order.

    Raises:
        UserError: there is no such row, or a configuration that cannot be.
    """
    work: Work = {}
    for cell in table.select(rows):
        for seed in seeds or table.seeds:
            work.setdefault(Job(settings, cell.config, seed), []).append(cell)
    for job in work:
        job.check_model()
    return work


def show(work: Work) -> Iterator[str]:
    """Yield every command that :func:`run` would run if nothing had been done, as lines for a shell."""
    shown = set()
    for job, cells in work.items():
        rows = dict.fromkeys(f"{cell.row}, {cell.column}" if len(work) > 1 else cell.row for cell in cells)
        yield f"# {job.name}, seed {job.seed}: {'; '.join(list(rows)[:8])}{' ...' if len(rows) > 8 else ''}"
        yield f"# effective batch: {job.batch}"
        if job.corpus not in shown:
            shown.add(job.corpus)
            yield shlex.join(job.prepare)
        yield shlex.join(job.train)
        yield f"# the same: {shlex.join(job.train_by_flags)}"
        if job.average:
            yield shlex.join(job.average)
        for measurements in _needed(job, cells).values():
            for measurement in measurements:
                for evaluation in job.evaluate(measurement):
                    yield f"{shlex.join(evaluation.command)} > {shlex.quote(str(evaluation.log))} 2>&1"
                    yield from score_commands(job, measurement, evaluation)
                if measurement.tool == "train-log":
                    yield f"# {', '.join(measurement.metrics)} from the validations in {job.folder}/train.*.log"
        yield ""


def run(table: TableRecipe, work: Work, results: Path | None, runner: Runner | None = None) -> None:
    """Run what has not been run, and record each score that is not on record.

    Args:
        results: the file of records; None: the checkout's.
        runner: how many runs at a time; None: one.

    Raises:
        UserError: a step failed; what was recorded before stays.
    """
    runner = runner or Runner(echo=True)
    missing: Work = {}
    for job, cells in work.items():
        if cells := [cell for cell in cells if not _on_record(table, job, cell, results)]:
            missing[job] = cells
        else:
            runner.say(f"{job.name}, seed {job.seed}: on record")
    if unprepared := {job.corpus: job for job in missing if not is_prepared(job)}:
        preparations = [Run(f"corpus {path.name}", partial(_prepare, job, runner)) for path, job in unprepared.items()]
        runner.run_all(preparations)
    runs = []
    for job, cells in missing.items():
        runner.say(f"{job.name}, seed {job.seed}: {job.batch}")
        ready = Job(job.settings, job.name, job.given_seed)  # now the corpus can say what its language pairs are
        check_references(ready, itertools.chain.from_iterable(_needed(ready, cells).values()))
        runner.say(f"# the same: {shlex.join(ready.train_by_flags)}")
        rows = ", ".join(dict.fromkeys(cell.row for cell in cells))
        carry_out = partial(_carry_out, table, ready, cells, results, runner)
        runs.append(Run(f"{rows}, seed {ready.seed}", carry_out, ready.asked.optimization.max_update))
    runner.run_all(runs)


def _prepare(job: Job, runner: Runner, run: Run) -> None:
    Stages(job, runner, run).prepare()


def _carry_out(table: TableRecipe, job: Job, cells: list[Cell], results: Path | None, runner: Runner, run: Run) -> None:
    with Stages.of(job, runner, run) as stages:
        append(_records(table, stages, cells), results, {table.published.key: table.published})


def _records(table: TableRecipe, stages: Stages, cells: list[Cell]) -> list[Record]:
    job = stages.job
    try:
        stages.train()
    except Diverged as reason:
        stages.run.begin(f"training failed: {reason}")
        print(f"{job.name}, seed {job.seed}: training failed: {reason}", file=sys.stderr, flush=True)
        return [
            _record(table, job, cell, Score(metric, 0.0, "none: training failed"), f"diverged: {reason}")
            for cell in cells
            for metric in _metrics(job, cell)
        ]
    stages.average()
    scores = stages.scores([cell.score for cell in cells])
    return [_record(table, job, cell, score) for cell in cells for score in scores[cell.score] if _has(score, cell)]


def _record(table: TableRecipe, job: Job, cell: Cell, score: Score, failure: str = "") -> Record:
    value = score.value if isinstance(score.value, float) else score.value[str(cell.key)]
    return Record(
        experiment=table.experiment,
        table=table.name,
        row=cell.row,
        column=cell.column,
        value=FAILED if failure else value,
        metric=score.metric,
        signature=score.signature,
        seed=job.seed,
        commit=commit(),
        torch=torch.__version__,
        device=_device(job),
        hours=round(hours(job), 3),
        config_hash=job.config_hash,
        date=date.today().isoformat(),
        note="; ".join(filter(None, [failure, f"{_precision(job)}, {job.batch}", release(job)])),
    )


def _has(score: Score, cell: Cell) -> bool:
    return isinstance(score.value, float) or str(cell.key) in score.value


def _needed(job: Job, cells: list[Cell]) -> dict[str, tuple[Measurement, ...]]:
    return job.recipe.needed(list(dict.fromkeys(cell.score for cell in cells)))


def _metrics(job: Job, cell: Cell) -> list[str]:
    needed = job.recipe.needed([cell.score])
    return list(dict.fromkeys(name for found in needed.values() for m in found for name in expected_metrics(m)))


def _on_record(table: TableRecipe, job: Job, cell: Cell, results: Path | None) -> bool:
    recorded = {
        record.metric
        for record in read_records(results)
        if (record.key, record.row, record.column) == (f"{table.experiment}/{table.name}", cell.row, cell.column)
        and (record.seed, record.config_hash) == (job.seed, job.config_hash)
    }
    return set(_metrics(job, cell)) <= recorded


def _precision(job: Job) -> str:
    common = job.config.common
    return next((name for name in ("bf16", "amp", "fp16") if common[name]), "fp32")


def _device(job: Job) -> str:
    if job.settings.machine.gpus == 0:
        return f"CPU ({platform.machine()})"
    return f"{job.settings.machine.devices} x {torch.cuda.get_device_name(0)}"
