"""``python -m fairseq_residuals.small TASK``: all of a small pipeline."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from fairseq_residuals.data.steps import alone_in
from fairseq_residuals.demo.processes import Children, StepFailed
from fairseq_residuals.demo.settings import default_jobs
from fairseq_residuals.results import read_records, render
from fairseq_residuals.small.plan import TASKS, Plan, find_task, work_folder
from fairseq_residuals.small.task import EXPERIMENT
from modern_fairseq.errors import UserError

INTERRUPTED = 130
SECONDS_BETWEEN_LINES = 10.0
_STARTED = re.compile(r"^\$ (\S+) .*\n  \(log: (.+)\)$", re.M)
_UPDATE = re.compile(r'\[train_inner\]\[INFO\] - \{.*"loss": "([^"]+)".*"num_updates": "(\d+)"')


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
    made.add_argument("--examples", type=int, metavar="N", help="at most so many for training")
    made.add_argument("--updates", type=int, metavar="N", help="of the parameters, per run")
    made.add_argument("--subwords", type=int, metavar="N", help="BPE merges or pieces; language model: occurrences")
    made.add_argument(
        "--override", nargs="+", default=[], metavar="KEY=VALUE", help="of the recipe, as hydra takes them"
    )
    made.add_argument("--out", type=Path, default=Path("small_out"), metavar="DIR", help="for all files (%(default)s)")
    made.add_argument("--jobs", type=int, default=default_jobs(), help="runs at a time, one thread each (%(default)s)")
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


def progress(log: Path, updates: int) -> str:
    """What a row is at, from its log and that of its training."""
    started = _STARTED.findall(log.read_text(encoding="utf-8")) if log.exists() else []
    if not started:
        return "waiting"
    program, where = started[-1]
    told = _UPDATE.findall(Path(where).read_text(encoding="utf-8", errors="replace")) if Path(where).exists() else []
    return f"update {told[-1][1]}/{updates}, loss {told[-1][0]}" if told else program


def train(plan: Plan, rows: Sequence[str], seeds: Sequence[int], jobs: int) -> None:
    """All rows with all seeds, ``jobs`` at a time.

    Raises:
        StepFailed: one of them failed.
    """
    runs = [(row, seed) for seed in seeds for row in rows]
    logs = {run: plan.folder / f"{run[0].replace('/', '-')}-seed{run[1]}.log" for run in runs}
    said: dict[tuple[str, int], str] = {}
    began = due = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool, Children() as children:
        pending = set()
        for row, seed in runs:
            command = [sys.executable, "-m", "fairseq_residuals.small.row", plan.as_json(), row, str(seed)]
            logs[row, seed].unlink(missing_ok=True)
            pending.add(pool.submit(children.run, command, logs[row, seed]))
        while pending:
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if time.monotonic() >= due or not pending:
                due = time.monotonic() + SECONDS_BETWEEN_LINES
                for run in runs:
                    now = progress(logs[run], plan.sizes.updates)
                    if said.get(run) != now:
                        said[run] = now
                        print(f"[{time.monotonic() - began:4.0f} s] {run[0]}, seed {run[1]}: {now}", flush=True)


def report(plan: Plan, summary: Path, rows: Sequence[str]) -> str:
    """The table, and what its numbers are."""
    counts = json.loads(summary.read_text(encoding="utf-8"))["lines"]
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
    sizes = find_task(args.task).sizes
    given = {name: getattr(args, name) for name in ("examples", "updates", "subwords")}
    sizes = replace(sizes, **{name: value for name, value in given.items() if value is not None})
    folder = work_folder(args.task, args.out, sizes, args.override)
    plan = Plan(args.task, folder, sizes, tuple(args.override))
    rows = chosen_rows(plan, args.rows)
    if args.jobs < 1:
        raise UserError(f"--jobs is {args.jobs} and has to be at least 1")
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
    try:
        run(parser().parse_args(argv))
    except (UserError, StepFailed) as error:
        print(f"{EXPERIMENT}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{EXPERIMENT}: interrupted; repeat the command to go on with what is unfinished", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the children as Ctrl-C does
    sys.exit(main())
