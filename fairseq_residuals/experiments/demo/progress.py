"""Progress of the runs: bars on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairseq_residuals.experiments.demo.results import Training
from fairseq_residuals.experiments.demo.runs import Run

SECONDS_BETWEEN_LINES = 10.0


def state(run: Run) -> tuple[int, str]:
    """Updates done, and what to tell about them."""
    training = Training.read(run.log)
    if not training.curve:
        return 0, "waiting" if not run.log.exists() else "starting"
    update, loss = training.curve[-1]
    stage = "translated" if run.translated else "translating" if run.trained else ""
    if training.valid and not stage:
        stage = f"valid ppl {2 ** training.valid[-1][1]:.1f}"
    return update, ", ".join(filter(None, (f"train loss {loss:.2f} bits", stage)))


@contextmanager
def lines(runs: Sequence[Run]) -> Iterator[Callable[[], None]]:
    """For logs and pipes: now and then a line for each run that got on. Yields what to call often."""
    said: dict[str, str] = {}
    began = due = time.monotonic()

    def tell() -> None:
        for run in runs:
            update, text = state(run)
            line = f"{run.name}: update {update}/{run.settings.updates}, {text}"
            if said.get(run.name) != line:
                said[run.name] = line
                print(f"[{time.monotonic() - began:4.0f} s] {line}", flush=True)

    def refresh() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + SECONDS_BETWEEN_LINES
            tell()

    yield refresh
    tell()


@contextmanager
def bars(runs: Sequence[Run]) -> Iterator[Callable[[], None]]:
    """For terminals: one bar for each run, redrawn in place. Yields what to call often."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), refresh_per_second=2) as progress:
        tasks = {progress.add_task(run.name, total=run.settings.updates, text=""): run for run in runs}

        def refresh() -> None:
            for task, run in tasks.items():
                update, text = state(run)
                progress.update(task, completed=update, text=text)

        yield refresh
        refresh()


def display(runs: Sequence[Run]) -> AbstractContextManager[Callable[[], None]]:
    """What suits stdout."""
    return bars(runs) if sys.stdout.isatty() else lines(runs)
