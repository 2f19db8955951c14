"""Entries in turn, round after round, each time in a fresh process.

What slows the machine down for a while slows all of them, memory is each one's own, and one that crashes is a line that
says so.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fairseq_residuals.lab.bench.entries import Case, Entry
from fairseq_residuals.lab.bench.worker import REFUSED, Measured, request
from fairseq_residuals.plugin.progress import say


class Failed(Exception):
    """A process that measured nothing; the message says why."""


@dataclass
class Line:
    """One entry at one case, and what its processes found, a round each."""

    entry: Entry
    case: Case
    found: list[Measured] = field(default_factory=list)
    failure: str = ""
    """Reason why there is no result, or why no further round was tried."""

    def median(self, key: str) -> float | None:
        """Return the median of what was measured each round; None if nothing was."""
        values = [measured[key] for measured in self.found if measured.get(key) is not None]
        return statistics.median(values) if values else None

    def middle(self) -> Measured:
        """Return what the round of the median step found."""
        return sorted(self.found, key=lambda measured: measured["step"])[(len(self.found) - 1) // 2]


def measure(lines: Sequence[Line], mode: str, rounds: int, timeout: float) -> Iterator[int]:
    """Fill in ``lines``, which are of one device, and give the number of every round when it is over.

    Args:
        mode: of :data:`fairseq_residuals.lab.bench.worker.MODES`.
        timeout: seconds that a process may take.
    """
    for number in range(1, rounds + 1):
        for line in lines:
            if line.failure:
                continue
            say(f"round {number} of {rounds}: {line.entry}, {line.case}")
            try:
                line.found.append(work(mode, line.entry, line.case, timeout))
            except Failed as failure:
                line.failure = str(failure)
                say(f"{line.entry}, {line.case}: {failure}")
        yield number


def work(mode: str, entry: Entry, case: Case, timeout: float) -> Measured:
    """Do one thing in a process of its own.

    Raises:
        Failed: it refused, crashed, or did not end in time.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "fairseq_residuals.lab.bench.worker"],
            input=json.dumps(request(mode, entry, case)),
            capture_output=True,
            text=True,
            env={**os.environ, **entry.environment},
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done within {timeout:g} s") from None
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    if ended.returncode == REFUSED:
        raise Failed(f"not measured: {ended.stdout.splitlines()[-1]}")
    last = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
    if ended.returncode == -signal.SIGKILL:
        raise Failed("out of memory, or killed by hand (SIGKILL)")
    if "OutOfMemoryError" in last or "MemoryError" in last or "can't allocate memory" in last:
        raise Failed(f"out of memory: {last}")
    how = f"status {ended.returncode}" if ended.returncode > 0 else signal.Signals(-ended.returncode).name
    raise Failed(f"crashed ({how}): {last}")
