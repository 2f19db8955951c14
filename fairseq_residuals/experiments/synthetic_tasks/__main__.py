"""``python -m fairseq_residuals.experiments.synthetic_tasks TASK``: all of a small pipeline."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.data.pipeline.steps import alone_in
from fairseq_residuals.experiments.demo.settings import default_jobs
from fairseq_residuals.experiments.synthetic_tasks.call import add_flags, as_program, chosen_sizes, exit_status
from fairseq_residuals.experiments.synthetic_tasks.plan import TASKS, Plan, find_task, work_folder
from fairseq_residuals.experiments.synthetic_tasks.side_by_side import Process, side_by_side
from fairseq_residuals.experiments.tables import read_records, render
from fairseq_residuals.utils.documents import read_json


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="small",
        description="Makes small data on the spot, trains narrow models of a table's depth on them on the CPU by the "
        "paper's recipe, and prints the small twin of that table. What is finished is reused when the command is "
        "repeated.",
    )
    made.add_argument("task", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    made.add_argument("--rows", nargs="+", metavar="ROW", help="as the table calls them (all)")
    made.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N", help="a run each per row (1)")
    add_flags(made)
    return made


def chosen_rows(plan: Plan, rows: Sequence[str] | None) -> list[str]:
    """
    Raises:
        UserError: the table has no such row.
    """
    for row in rows or ():
        if row not in plan.task.rows:
            raise UserError(f"--rows: {row!r} is no row of this table; its rows are {', '.join(plan.task.rows)}")
    return list(dict.fromkeys(rows or plan.task.rows))


def train(plan: Plan, rows: Sequence[str], seeds: Sequence[int], jobs: int) -> None:
    """All rows with all seeds, ``jobs`` at a time.

    Raises:
        StepFailed: one of them failed.
    """
    python = (sys.executable, "-m", "fairseq_residuals.experiments.synthetic_tasks.row", plan.as_json())
    processes = [
        Process(
            f"{row}, seed {seed}",
            (*python, row, str(seed)),
            plan.folder / f"{row.replace('/', '-')}-seed{seed}.log",
        )
        for seed in seeds
        for row in rows
    ]
    side_by_side(processes, plan.sizes.updates, jobs)


def report(plan: Plan, summary: Path, rows: Sequence[str]) -> str:
    """The table, and what its numbers are."""
    counts = read_json(summary)["lines"]
    table = replace(plan.task.table, rows={row: {} for row in rows})
    records = [record for record in read_records(plan.results) if record.row in rows]
    return (
        f"{render(table, records)}\n"
        f"Data: {plan.task.data}.\nLines: {', '.join(f'{name} {count:,}' for name, count in counts.items())}.\n"
        f"These are not the paper's data: the models are narrow and trained for {plan.sizes.updates} updates. The rows "
        f"compare with each other, not with {plan.task.twin} ('fairseq-residuals table {plan.task.twin}').\n"
    )


def run(args: argparse.Namespace) -> None:
    began = time.monotonic()
    sizes = chosen_sizes(args, find_task(args.task))
    folder = work_folder(args.task, args.out, sizes, args.override)
    plan = Plan(args.task, folder, sizes, tuple(args.override))
    rows = chosen_rows(plan, args.rows)
    plan.check()
    with alone_in(plan.folder):
        summary = plan.prepare(workers=min(args.jobs, default_jobs() - 1))
        train(plan, rows, args.seeds, args.jobs)
        text = report(plan, summary, rows)
        (plan.folder / "report.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}\nWritten to {plan.folder}: report.txt, results.csv; commands and logs are there too.")
    print(f"This took {time.monotonic() - began:.0f} seconds.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a pipeline and returns its exit status."""
    return exit_status(run, parser().parse_args(argv))


if __name__ == "__main__":
    sys.exit(as_program(main))
