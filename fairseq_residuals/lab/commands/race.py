"""``fairseq-residuals race``: which variants train at this depth, with this learning rate and warm-up."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from queue import Empty
from typing import Any

import torch

from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.subjects import add_flags
from fairseq_residuals.lab.look.training_data import GAMES
from fairseq_residuals.lab.recipes import race_report
from fairseq_residuals.lab.recipes.race import SCHEDULES, RaceResult, RaceRun, runs_of, train
from fairseq_residuals.lab.utils.tables import text_table

HELP = "train variants side by side at small scale and plot their losses: which of them train, with or without warm-up"


def configure(parser: argparse.ArgumentParser) -> None:
    race = parser.add_argument_group("race", "every model is trained with every --lr and --warmup, from every seed")
    race.add_argument("--updates", type=int, default=600, metavar="N", help="per run (%(default)s)")
    race.add_argument("--seeds", type=int, default=1, metavar="N", help="runs each, from --seed on (%(default)s)")
    race.add_argument("--lr", type=float, nargs="+", default=[1e-3], metavar="X", help="learning rates (0.001)")
    race.add_argument("--warmup", type=int, nargs="+", default=[100], metavar="N", help="updates; 0: none (100)")
    race.add_argument("--schedule", choices=SCHEDULES, default="inverse_sqrt", help="after the warm-up (%(default)s)")
    race.add_argument(
        "--decay-period",
        type=int,
        default=4000,
        metavar="N",
        help="of inverse_sqrt without warm-up: updates after which the learning rate is 0.7 of --lr (%(default)s)",
    )
    race.add_argument("--clip-norm", type=float, default=0.0, metavar="X", help="of gradients; 0: off (%(default)s)")
    race.add_argument("--label-smoothing", type=float, default=0.1, metavar="X", help="%(default)s")
    race.add_argument("--weight-decay", type=float, default=0.0, metavar="X", help="%(default)s")
    race.add_argument("--game", choices=GAMES, default="reverse", help="what to do with synthetic tokens (%(default)s)")
    race.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time, a process each (%(default)s)")
    add_flags(parser)
    add_output_flags(parser, "race")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: nothing can be trained, or nothing written.
    """
    check_folder(args)
    chosen = runs_of(args)
    with race_report.shown(chosen, args.updates) as tell:
        results = _in_processes(chosen, args, tell) if args.jobs > 1 else _here(chosen, args, tell)
    print(text_table(race_report.HEAD, race_report.table(results)))
    print(race_report.caption(args, results))
    write(args, race_report.draw(results), race_report.CSV_HEAD, race_report.csv_rows(results))
    return 0


def _here(chosen: Sequence[RaceRun], args: argparse.Namespace, tell: race_report.Tell) -> list[RaceResult]:
    return [
        train(run, args, lambda update, loss, number=number: tell(number, update, loss))  # type: ignore[misc]
        for number, run in enumerate(chosen)
    ]


def _in_processes(chosen: Sequence[RaceRun], args: argparse.Namespace, tell: race_report.Tell) -> list[RaceResult]:
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    threads = max(1, (os.cpu_count() or 1) // args.jobs)
    with ProcessPoolExecutor(args.jobs, context, _begin, (told, threads)) as pool:
        futures = [pool.submit(_work, number, run, args) for number, run in enumerate(chosen)]
        while True:
            done = not wait(futures, timeout=0).not_done
            _pass_on(told, tell)
            failed = next((f for f in futures if f.done() and f.exception()), None)
            if failed:
                pool.shutdown(cancel_futures=True)
                failed.result()
            if done:
                return [future.result() for future in futures]


def _pass_on(told: Any, tell: race_report.Tell) -> None:
    try:
        tell(*told.get(timeout=0.5))
        while True:
            tell(*told.get_nowait())
    except Empty:
        return


_told: Any = None
"""In a worker, where it tells what it has done."""


def _begin(told: Any, threads: int) -> None:
    global _told
    _told = told
    torch.set_num_threads(threads)


def _work(number: int, run: RaceRun, args: argparse.Namespace) -> RaceResult:
    return train(run, args, lambda update, loss: _told.put((number, update, loss)))
