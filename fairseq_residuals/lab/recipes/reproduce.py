"""Reproduce the cells of a table: every run that they need, once, and a record of each score."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path

import torch

from fairseq_residuals.lab.data.corpora import CORPORA, find_corpus
from fairseq_residuals.lab.recipes.evaluate import check_references, expected_metrics
from fairseq_residuals.lab.recipes.job import Job, Settings
from fairseq_residuals.lab.recipes.recipe import Measurement
from fairseq_residuals.lab.recipes.runner import CommandFailed, Run, Runner
from fairseq_residuals.lab.recipes.stages import Diverged, Stages, hours, is_prepared, is_trained, write_json
from fairseq_residuals.lab.recipes.tables import FAILED, Record, append, read_records
from fairseq_residuals.lab.recipes.tables.cells import Cell, TableRecipe
from fairseq_residuals.lab.scoring import Score
from fairseq_residuals.lab.utils.checkout import commit
from fairseq_residuals.lab.utils.machine import processor
from fairseq_residuals.plugin.documents import read_json
from fairseq_residuals.wirings.core.errors import UserError

Work = dict[Job, list[Cell]]
"""Each run with the cells that it is for."""


def jobs_of(
    table: TableRecipe,
    settings: Settings,
    rows: Sequence[str] | None,
    seeds: Sequence[int] | None,
    columns: Sequence[str] | None = None,
) -> Work:
    """Return the runs that some cells of a table need, in the table's order.

    Raises:
        UserError: there is no such row or column, or a configuration that cannot be.
    """
    cells = table.select(rows, columns)
    work: Work = {}
    for cell in cells:
        for seed in dict.fromkeys(seeds or table.seeds):
            work.setdefault(Job(settings, cell.config, seed), []).append(cell)
    for job in work:
        job.check_model()
        job.check_average()
    return work


def run(table: TableRecipe, work: Work, results: Path, runner: Runner) -> None:
    """Run what has not been run, and record each score that is not on record.

    Corpora are prepared before anything is trained. Cells whose corpus cannot be had are left out, and named before
    and after the others are run.

    Args:
        results: the file of records.

    Raises:
        UserError: a step failed, or cells were left out; what was recorded before stays.
    """
    missing: Work = {}
    for job, cells in work.items():
        if cells := [cell for cell in cells if not _on_record(table, job, cell, results)]:
            missing[job] = cells
        else:
            runner.say(f"{job.name}, seed {job.seed}: on record")
    left_out = _prepare_all(missing, runner)
    runs = []
    for job, cells in missing.items():
        if job.corpus in left_out:
            continue
        ready = Job(job.settings, job.name, job.given_seed)  # now the corpus can say its language pairs and lengths
        runner.say(f"{ready.name}, seed {ready.seed}: {ready.batch}")
        check_references(ready, measurements_of(ready, cells))
        rows = ", ".join(dict.fromkeys(cell.row for cell in cells))
        carry_out = partial(_carry_out, table, ready, cells, results, runner)
        runs.append(Run(f"{rows}, seed {ready.seed}", carry_out, ready.asked.optimization.max_update))
    runner.run_all(runs)
    if left_out:
        raise UserError(describe(missing, left_out))


def _prepare_all(work: Work, runner: Runner) -> dict[Path, str]:
    """Prepare every corpus that can be had; return why others cannot be, by folder."""
    unprepared = {job.corpus: job for job in work if not is_prepared(job)}
    left_out: dict[Path, str] = {}
    runner.run_all(
        [Run(f"corpus {folder.name}", partial(_prepare, job, runner, left_out)) for folder, job in unprepared.items()]
    )
    if left_out:  # said before hours of other work
        print(f"reproduce: {describe(work, left_out)}", file=sys.stderr, flush=True)
    return left_out


def _prepare(job: Job, runner: Runner, left_out: dict[Path, str], run: Run) -> None:
    try:
        Stages(job, runner, run).prepare()
    except CommandFailed as failure:
        left_out[job.corpus] = f"{failure}: {failure.tail(1)}"


def measurements_of(job: Job, cells: Sequence[Cell]) -> list[Measurement]:
    """Return what is measured of a run for some cells."""
    return list(itertools.chain.from_iterable(job.recipe.needed([cell.score for cell in cells]).values()))


def _carry_out(table: TableRecipe, job: Job, cells: list[Cell], results: Path, runner: Runner, run: Run) -> None:
    with Stages.of(job, runner, run) as stages:
        records = _records(table, stages, cells)
        append(records, results, {table.published.key: table.published})
    for record in records:
        runner.say(f"{record.row}, {record.column}, seed {record.seed}: {record.value} {record.metric}")


def _records(table: TableRecipe, stages: Stages, cells: list[Cell]) -> list[Record]:
    job = stages.job
    _check_data(job)
    on = _trained_on(stages)
    try:
        stages.train()
    except Diverged as reason:
        stages.run.begin(f"training failed: {reason}")
        print(f"{job.name}, seed {job.seed}: training failed: {reason}", file=sys.stderr, flush=True)
        return [
            _record(table, job, cell, Score(metric, 0.0, "none: training failed"), on, f"diverged: {reason}")
            for cell in cells
            for metric in _metrics(job, cell)
        ]
    stages.average()
    scores = stages.scores([cell.score for cell in cells])
    return [
        _record(table, job, cell, score, on)
        for cell in cells
        for score in scores[cell.score]
        if isinstance(score.value, float) or str(cell.key) in score.value
    ]


def _check_data(job: Job) -> None:
    """Note on what data a run is, for later calls.

    Raises:
        UserError: an earlier call had other data, of which its model and what it generated are.
    """
    files, note = read_json(job.corpus / "prepared.json").get("sha256"), job.folder / "data.json"
    if not note.is_file():
        write_json(note, {"sha256": files})
    elif read_json(note)["sha256"] != files:
        raise UserError(f"{job.folder} is a run on other data than {job.corpus} has now; choose another --out")


def _trained_on(stages: Stages) -> dict[str, str]:
    """Return on what the model is trained, one machine after the other; of one that is trained, on what it was."""
    job, path = stages.job, stages.job.folder / "trained_on.json"
    if stages.has_ended() and path.is_file():
        return dict(read_json(path))
    device = f"CPU ({processor()}), threads: {stages.runner.threads}"
    if job.settings.gpus > 0:
        device = f"{job.batch.devices} x {torch.cuda.get_device_name(0)}"
    on = {"torch": torch.__version__, "device": device, "batch": str(job.batch)}
    for key, before in read_json(path).items() if path.is_file() else ():
        on[key] = before if on[key] == before.split(", then ")[-1] else f"{before}, then {on[key]}"
    write_json(path, on)
    return on


def _record(table: TableRecipe, job: Job, cell: Cell, score: Score, on: Mapping[str, str], failure: str = "") -> Record:
    value = score.value if isinstance(score.value, float) else score.value[str(cell.key)]
    precision = next((name for name in ("bf16", "amp", "fp16") if job.config.common[name]), "fp32")
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
        torch=on["torch"],
        device=on["device"],
        hours=round(hours(job), 3),
        config_hash=job.config_hash,
        date=date.today().isoformat(),
        note="; ".join(filter(None, [failure, f"{precision}, {on['batch']}", *job.settings.overrides])),
    )


def _metrics(job: Job, cell: Cell) -> list[str]:
    return list(dict.fromkeys(name for m in measurements_of(job, [cell]) for name in expected_metrics(m)))


def _on_record(table: TableRecipe, job: Job, cell: Cell, results: Path) -> bool:
    recorded = {
        record.metric
        for record in read_records(results)
        if (record.key, record.row, record.column) == (f"{table.experiment}/{table.name}", cell.row, cell.column)
        and (record.seed, record.config_hash) == (job.seed, job.config_hash)
    }
    return set(_metrics(job, cell)) <= recorded


def describe(work: Mapping[Job, list[Cell]], reasons: Mapping[Path, str]) -> str:
    """Return one sentence about the cells that are left out, by the folders of their corpora; "" where none are."""
    parts = []
    for folder, reason in reasons.items():
        cells = dict.fromkeys((cell.row, cell.column) for job in work if job.corpus == folder for cell in work[job])
        columns = ", ".join(dict.fromkeys(column for _, column in cells))
        parts.append(f"{len(cells)} cells ({columns}), for {reason.rstrip('.')}")
    return f"left out: {'; '.join(parts)}" if parts else ""


def show(work: Work) -> Iterator[str]:
    """Yield every command that :func:`run` would run if nothing had been done.

    Raises:
        UserError: a corpus that has no such variant.
    """
    shown = set()
    for job, cells in work.items():
        rows = dict.fromkeys(f"{cell.row}, {cell.column}" if len(work) > 1 else cell.row for cell in cells)
        yield f"# {job.name}, seed {job.seed}: {'; '.join(list(rows)[:8])}{' ...' if len(rows) > 8 else ''}"
        yield f"# effective batch: {job.batch}"
        if job.corpus not in shown:
            shown.add(job.corpus)
            yield shlex.join(job.prepare)
        yield shlex.join(job.train)
        if job.average:
            yield shlex.join(job.average)
        yield from dict.fromkeys(_evaluations(job, cells))  # several scores may be of one generation
        yield ""
    yield from (f"# in all: {line}" for line in summary(list(work)))


def summary(work: Sequence[Job]) -> Iterator[str]:
    """Yield how much the runs that have not been made would train and download, a line each."""
    jobs = [job for job in work if not is_trained(job)]
    updates = sum(job.asked.optimization.max_update for job in jobs)
    passes = sum(job.asked.optimization.max_update * job.batch.update_freq for job in jobs)
    yield f"trainings: {len(jobs)}, updates: at most {updates:,}, passes on each device: {passes:,}"
    missing: set[str] = set()
    for job in jobs:
        if job.recipe.corpus in CORPORA and not is_prepared(job):
            _, variant = find_corpus(job.recipe.corpus).variant(job.recipe.variant)
            missing |= {s.name for s in variant.sources if not (job.settings.downloads / s.name).exists()}
    yield f"files to download or supply: {len(missing)}"


def _evaluations(job: Job, cells: list[Cell]) -> Iterator[str]:
    for measurement in measurements_of(job, cells):
        for evaluation in job.evaluate(measurement):
            yield f"{shlex.join(evaluation.command)} > {shlex.quote(str(evaluation.log))} 2>&1"
        of = f"{job.folder}/train.*.log" if measurement.tool == "train-log" else measurement.set
        yield f"# scored by reproduce: {of} by {', '.join(measurement.metrics)}"
