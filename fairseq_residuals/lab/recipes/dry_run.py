"""What a call of ``fairseq-residuals reproduce`` would do: every command, once, as lines for a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fairseq_residuals.lab.recipes.availability import describe, why_unobtainable
from fairseq_residuals.lab.recipes.costs import summary
from fairseq_residuals.lab.recipes.evaluate import score_commands
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.longest_sample import longest_accepted
from fairseq_residuals.lab.recipes.reproduce import Work, measurements_of
from fairseq_residuals.lab.recipes.stages import is_prepared
from fairseq_residuals.lab.recipes.tables.cells import Cell


def show(work: Work) -> Iterator[str]:
    """Yield every command that :func:`reproduce.run` would run if nothing had been done.

    Raises:
        UserError: a corpus that has no such variant.
    """
    shown = set()
    unobtainable = {}
    for job, cells in work.items():
        rows = dict.fromkeys(f"{cell.row}, {cell.column}" if len(work) > 1 else cell.row for cell in cells)
        yield f"# {job.name}, seed {job.seed}: {'; '.join(list(rows)[:8])}{' ...' if len(rows) > 8 else ''}"
        yield f"# effective batch: {job.batch}{_not_known_yet(job)}"
        if job.corpus not in shown:
            shown.add(job.corpus)
            if not is_prepared(job) and (reason := why_unobtainable(job)):
                unobtainable[job.corpus] = reason
            yield shlex.join(job.prepare)
        yield shlex.join(job.train)
        yield f"# the same: {shlex.join(job.train_by_flags)}"
        if job.average:
            yield shlex.join(job.average)
        yield from dict.fromkeys(_evaluations(job, cells))  # several scores may be of one generation
        yield ""
    yield from (f"# cost: {line}" for line in summary(list(work)))
    if unobtainable:
        yield "# cost: what is left out is counted too"
        yield f"# {describe(work, unobtainable)}"


def _not_known_yet(job: Job) -> str:
    """Return what the samples of a corpus that is not prepared may change; "" where they cannot."""
    batch = job.batch
    if batch.devices == 1 or is_prepared(job) or job.asked.task._name == "language_modeling":
        return ""
    if batch.max_tokens >= longest_accepted(job.asked):
        return ""
    return f"; fewer devices, if a sample of the corpus, which is not prepared, has more than {batch.max_tokens} tokens"


def _evaluations(job: Job, cells: list[Cell]) -> Iterator[str]:
    for measurement in measurements_of(job, cells):
        for evaluation in job.evaluate(measurement):
            yield f"{shlex.join(evaluation.command)} > {shlex.quote(str(evaluation.log))} 2>&1"
            yield from score_commands(job, measurement, evaluation)
        if measurement.tool == "train-log":
            yield f"# {', '.join(measurement.metrics)} from the validations in {job.folder}/train.*.log"
