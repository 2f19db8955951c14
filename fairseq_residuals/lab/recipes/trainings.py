"""``python -m fairseq_residuals.lab.recipes.trainings``: runs the trainings that stdin lists, for scripts/figures.

A line of stdin is a log, the number of updates, and the command as a shell takes it, with tabs between them. With
``--recipe`` it prints the command that trains a configuration on several GPUs, a word a line.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from fairseq_residuals.lab.look.training_log import Log
from fairseq_residuals.lab.recipes.job import Job, Settings
from fairseq_residuals.lab.recipes.machine import Machine
from fairseq_residuals.lab.recipes.runner import Run, Runner, environments
from fairseq_residuals.lab.recipes.synthetic_tasks.command_line import exit_status
from fairseq_residuals.lab.utils.checkout import CONFIGS


def read_runs(lines: Iterable[str], runner: Runner) -> list[Run]:
    """Return the runs whose logs do not say that training came to its end."""
    runs = []
    for line in lines:
        log, updates, command = line.rstrip("\n").split("\t")
        if not Log(Path(log)).read_on().finished:
            train = partial(_train, runner, Path(log), shlex.split(command))
            runs.append(Run(Path(log).stem, train, int(updates)))
    return runs


def _train(runner: Runner, log: Path, command: Sequence[str], run: Run) -> None:
    run.begin("training", log)
    # fairseq goes on from its last checkpoint, and the log of what went before stays
    runner.command(command, log, append=True)
    run.begin("trained")


def training(recipe: str, gpus: int, overrides: Sequence[str]) -> list[str]:
    """Return the command that trains a configuration of the checkout on GPUs that share its batch."""
    folders = Path("data").resolve(), Path("runs").resolve()
    return Job(Settings(CONFIGS, *folders, Machine(gpus), overrides=tuple(overrides)), recipe).train


def main(argv: Sequence[str] | None = None) -> int:
    """Run what has not been run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="trainings", description="Runs the trainings that stdin lists.")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side, on the CPU (%(default)s)")
    parser.add_argument("--recipe", metavar="NAME", help="print how this configuration is trained on --gpus devices")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="of --recipe (%(default)s)")
    parser.add_argument("override", nargs="*", metavar="KEY=VALUE", help="of --recipe, as hydra takes them")
    args = parser.parse_args(argv)
    if args.recipe:
        return exit_status("trainings", lambda: print("\n".join(training(args.recipe, args.gpus, args.override))))
    runner = Runner(environments(max(1, args.jobs), gpus=0))
    return exit_status("trainings", lambda: runner.run_all(read_runs(sys.stdin, runner)))


if __name__ == "__main__":
    sys.exit(main())
