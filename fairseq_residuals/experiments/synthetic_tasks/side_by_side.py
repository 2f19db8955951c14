"""Runs as processes of their own, several at a time, and what they are at."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.experiments.demo.processes import Children

SECONDS_BETWEEN_LINES = 10.0
WAITING = "waiting"
_STARTED = re.compile(r"^\$ (\S+) .*\n  \(log: (.+)\)$", re.M)
_UPDATE = re.compile(r'\[train_inner\]\[INFO\] - \{.*"loss": "([^"]+)".*"num_updates": "(\d+)"')


@dataclass(frozen=True)
class Process:
    """A run to start."""

    name: str
    """For people."""
    command: tuple[str, ...]
    log: Path


def side_by_side(
    processes: Iterable[Process], updates: int, jobs: int, ended: Callable[[Process], None] = lambda process: None
) -> None:
    """Runs all of them, ``jobs`` at a time, and prints where they are.

    Args:
        updates: of each training.
        ended: is called with each process that came to its end, in the thread that called this.

    Raises:
        StepFailed: one of them failed; the others are stopped.
    """
    said: dict[Process, str] = {}
    began = due = time.monotonic()

    def tell(process: Process) -> None:
        now = progress(process.log, updates)
        if said.get(process, WAITING) != now:
            said[process] = now
            print(f"[{time.monotonic() - began:4.0f} s] {process.name}: {now}", flush=True)

    with ThreadPoolExecutor(jobs) as pool, Children() as children:
        pending = {}
        for process in processes:
            process.log.unlink(missing_ok=True)
            pending[pool.submit(children.run, process.command, process.log)] = process
        while pending:
            for future in wait(pending, timeout=0.5, return_when=FIRST_COMPLETED).done:
                future.result()
                process = pending.pop(future)
                tell(process)
                ended(process)
            if time.monotonic() >= due:
                due = time.monotonic() + SECONDS_BETWEEN_LINES
                for process in pending.values():
                    tell(process)


def progress(log: Path, updates: int) -> str:
    """What a run is at, from its log and that of its training."""
    started = _STARTED.findall(log.read_text(encoding="utf-8")) if log.exists() else []
    if not started:
        return WAITING
    program, where = started[-1]
    told = _UPDATE.findall(Path(where).read_text(encoding="utf-8", errors="replace")) if Path(where).exists() else []
    return f"update {told[-1][1]}/{updates}, loss {told[-1][0]}" if told else program
