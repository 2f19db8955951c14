"""Reproduces the cells of a table: every run that they need, once, and a record of each score."""

from __future__ import annotations

import itertools
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import torch

import fairseq_residuals
from fairseq_residuals.experiments import command_steps
from fairseq_residuals.experiments.evaluate import (
    Score,
    check_references,
    expected_metrics,
    mean_of,
    measure,
    score_commands,
)
from fairseq_residuals.experiments.job import PLUGIN, Job, Settings
from fairseq_residuals.experiments.recipe import Measurement
from fairseq_residuals.experiments.tables import FAILED, Record, append, read_records
from fairseq_residuals.experiments.tables.cells import Cell, TableRecipe

Work = dict[Job, list[Cell]]
"""Each run with the cells that it is for."""


def plan(table: TableRecipe, settings: Settings, rows: Sequence[str] | None, seeds: Sequence[int] | None) -> Work:
    """The runs that some rows of a table need, in the table's order.

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
    """Every command that :func:`run` would run if nothing had been done, as lines for a shell."""
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


def run(table: TableRecipe, work: Work, results: Path | None) -> None:
    """Runs what has not been run, and records each score that is not on record.

    Args:
        results: the file of records; None: the checkout's.

    Raises:
        UserError: a step failed; what was recorded before stays.
    """
    for job, cells in work.items():
        missing = [cell for cell in cells if not _on_record(table, job, cell, results)]
        if not missing:
            print(f"{job.name}, seed {job.seed}: on record", flush=True)
            continue
        with command_steps.alone_in(job.folder):
            append(_records(table, job, missing), results, {table.published.key: table.published})


def _records(table: TableRecipe, job: Job, cells: list[Cell]) -> list[Record]:
    print(f"{job.name}, seed {job.seed}: {job.batch}", flush=True)
    command_steps.prepare(job)
    job = Job(job.settings, job.name, job.given_seed)  # now the corpus can say what its language pairs are
    needed = _needed(job, cells)
    check_references(job, itertools.chain.from_iterable(needed.values()))
    print(f"# the same: {shlex.join(job.train_by_flags)}", flush=True)
    try:
        command_steps.train(job)
    except command_steps.Diverged as reason:
        print(f"{job.name}, seed {job.seed}: training failed: {reason}", file=sys.stderr, flush=True)
        return [
            _record(table, job, cell, Score(metric, 0.0, "none: training failed"), f"diverged: {reason}")
            for cell in cells
            for metric in _metrics(job, cell)
        ]
    command_steps.average(job)
    found: dict[str, list[Score]] = {}
    for name, measurements in needed.items():
        found[name] = []
        for measurement in measurements:
            for evaluation in job.evaluate(measurement):
                command_steps.evaluate(evaluation)
            found[name] += measure(job, measurement)
    for name, parts in job.recipe.means.items():
        if all(part in found for part in parts):
            found[name] = [mean_of([found[part] for part in parts], f"|mean:{','.join(parts)}")]
    return [_record(table, job, cell, score) for cell in cells for score in found[cell.score] if _has(score, cell)]


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
        hours=round(command_steps.hours(job), 3),
        config_hash=job.config_hash,
        date=date.today().isoformat(),
        note="; ".join(filter(None, [failure, f"{_precision(job)}, {job.batch}"])),
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


def commit() -> str:
    found = subprocess.run(
        ["git", "-C", str(PLUGIN.parent), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or f"release {fairseq_residuals.__version__}"
