"""``python -m fairseq_residuals.lab.recipes.synthetic_tasks TASK``: a small task from nothing to its table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_residuals.lab.recipes import reproduce
from fairseq_residuals.lab.recipes.runner import Runner, cores
from fairseq_residuals.lab.recipes.synthetic_tasks import TASKS, find_task
from fairseq_residuals.lab.recipes.synthetic_tasks.command_line import add_flags, chosen_sizes, exit_status
from fairseq_residuals.lab.recipes.synthetic_tasks.task import EXPERIMENT, Task
from fairseq_residuals.lab.recipes.tables import read_records, render
from fairseq_residuals.lab.recipes.workspace import Workspace
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import read_json


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="small",
        description="Makes small data on the spot, trains narrow models of a table's depth on them on the CPU by the "
        "paper's recipe, and prints the small twin of that table. What is finished is reused when the command is "
        "repeated.",
    )
    parser.add_argument("task", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="as the table calls them (all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N", help="a run each per row (1)")
    add_flags(parser)
    return parser


def chosen_rows(task: Task, rows: Sequence[str] | None) -> list[str]:
    """Return the rows that were asked for, or all.

    Raises:
        UserError: the table has no such row.
    """
    for row in rows or ():
        if row not in task.rows:
            raise UserError(f"--rows: {row!r} is no row of this table; its rows are {', '.join(task.rows)}")
    return list(dict.fromkeys(rows or task.rows))


def train(workspace: Workspace, rows: Sequence[str], seeds: Sequence[int], jobs: int) -> None:
    """Train and score all rows with all seeds, ``jobs`` runs at a time.

    Raises:
        UserError: one of them failed.
    """
    table = workspace.task.recipe()
    work: reproduce.Work = {}
    for seed in seeds:
        for row in rows:
            work |= reproduce.jobs_of(table, workspace.settings(row), [row], [seed])
    reproduce.run(table, work, workspace.results, Runner.on_cpu(jobs))


def report(workspace: Workspace, summary: Path, rows: Sequence[str]) -> str:
    """Return the table, and what its numbers are."""
    task = workspace.task
    counts = read_json(summary)["lines"]
    table = replace(task.table, rows={row: {} for row in rows})
    records = [record for record in read_records(workspace.results) if record.row in rows]
    return (
        f"{render(table, records)}\n{overrides_line(workspace)}"
        f"Data: {task.data}.\nLines: {', '.join(f'{name} {count:,}' for name, count in counts.items())}.\n"
        f"These are not the paper's data: the models are narrow and trained for {workspace.sizes.updates} updates. The "
        f"rows compare with each other, not with {task.twin} ('fairseq-residuals table {task.twin}').\n"
    )


def overrides_line(workspace: Workspace) -> str:
    """Return what was changed in every row, whose names say nothing of it; empty where nothing was."""
    return f"Overrides: {' '.join(workspace.overrides)}.\n" if workspace.overrides else ""


def run(args: argparse.Namespace) -> None:
    """Do all of it and print the report."""
    began = time.monotonic()
    task = find_task(args.task)
    workspace = Workspace.under(args.out, task, chosen_sizes(args, task), args.override)
    rows = chosen_rows(task, args.rows)
    workspace.check()
    with locked(workspace.folder):
        summary = workspace.prepare(workers=min(args.jobs, cores()))
        train(workspace, rows, args.seeds, args.jobs)
        text = report(workspace, summary, rows)
        (workspace.folder / "report.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}\nWritten to {workspace.folder}: report.txt, results.csv; commands and logs are there too.")
    print(f"This took {time.monotonic() - began:.0f} seconds.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a small task and return the exit status."""
    args = build_parser().parse_args(argv)
    return exit_status(EXPERIMENT, lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
