"""What the command lines of the demo and of the small tasks have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fairseq_residuals.lab.recipes.runner import INTERRUPTED, default_jobs, terminable
from fairseq_residuals.lab.recipes.synthetic_tasks.task import Sizes, Task
from fairseq_residuals.wirings.core.errors import UserError


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options that do not depend on what is compared."""
    parser.add_argument("--examples", type=int, metavar="N", help="at most so many for training")
    parser.add_argument("--updates", type=int, metavar="N", help="of the parameters, per run")
    parser.add_argument("--subwords", type=int, metavar="N", help="BPE merges or pieces; language model: occurrences")
    parser.add_argument(
        "--override", nargs="+", default=[], metavar="KEY=VALUE", help="of the recipe, as hydra takes them"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("small_out"), metavar="DIR", help="for all files (%(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=default_jobs(), help="runs at a time, one thread each (%(default)s)"
    )


def chosen_sizes(args: argparse.Namespace, task: Task) -> Sizes:
    """Return the sizes of the task, less what the options say.

    Raises:
        UserError: ``--jobs`` is no number of runs.
    """
    if args.jobs < 1:
        raise UserError(f"--jobs is {args.jobs} and has to be at least 1")
    given = {name: getattr(args, name) for name in ("examples", "updates", "subwords")}
    return replace(task.sizes, **{name: value for name, value in given.items() if value is not None})


def exit_status(program: str, run: Callable[[], None]) -> int:
    """Run, and return the exit status; what a user can do wrong, and what failed, is said on stderr."""
    try:
        with terminable():
            run()
    except UserError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{program}: interrupted; repeat the command to go on with what is unfinished", file=sys.stderr)
        return INTERRUPTED
    return 0
