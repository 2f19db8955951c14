"""Where runs are, on stderr: bars on a terminal, a line now and then elsewhere; stdout has nothing but results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fairseq_residuals.wirings.utils.progress import say

SECONDS_BETWEEN_LINES = 10.0
MOST_BARS = 12
"""Of more runs than these, only those that are under way have a bar."""


class Watched(Protocol):
    """A run, as far as its progress goes."""

    name: str
    updates: int

    @property
    def ended(self) -> bool: ...

    def progress(self) -> tuple[int, str]:
        """Return the updates that are done, and what to say about them."""
        ...


Refresh = Callable[[], None]
"""What to call often."""


@contextmanager
def lines(runs: Sequence[Watched]) -> Iterator[Refresh]:
    """Print for logs and pipes: now and then a line for each run that got on, and one when it has ended."""
    said: dict[int, tuple[int, str]] = {}
    last: set[int] = set()
    due = time.monotonic() + SECONDS_BETWEEN_LINES

    def refresh() -> None:
        nonlocal due
        is_due = time.monotonic() >= due
        if is_due:
            due = time.monotonic() + SECONDS_BETWEEN_LINES
        for number, run in enumerate(runs):
            if number in last or not (is_due or run.ended):
                continue
            if run.ended:
                last.add(number)
            progress = run.progress()
            if said.get(number, (0, "waiting")) != progress:
                said[number] = progress
                update, text = progress
                say(f"{run.name}: update {update}/{run.updates}, {text}" if update else f"{run.name}: {text}")

    yield refresh
    refresh()


@contextmanager
def bars(runs: Sequence[Watched]) -> Iterator[Refresh]:
    """Draw for terminals: a bar for each run, redrawn in place."""
    columns = (TextColumn("{task.description}"), BarColumn(12), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, TimeElapsedColumn(), refresh_per_second=2, console=Console(stderr=True)) as bar:
        tasks = {bar.add_task(run.name, total=run.updates, text="", start=False): run for run in runs}

        def refresh() -> None:
            for task, run in tasks.items():
                update, text = run.progress()
                if text != "waiting":
                    bar.start_task(task)
                if run.ended:
                    bar.stop_task(task)
                visible = len(runs) <= MOST_BARS or not (text == "waiting" or run.ended)
                bar.update(task, completed=update, text=text, visible=visible)

        refresh()
        yield refresh
        refresh()


def display(runs: Sequence[Watched]) -> AbstractContextManager[Refresh]:
    """Return what suits stderr."""
    return bars(runs) if sys.stderr.isatty() else lines(runs)
