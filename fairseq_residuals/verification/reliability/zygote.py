"""Run console commands as children of this process, which has imported all that they need."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.experiments.forks import Forked, become, preload
from fairseq_residuals.experiments.runner import Runner
from modern_fairseq.fixes import saving

_POLL = 0.002
_SET_CHILD_SUBREAPER = 36
_SENTENCE = re.compile(r"^[\w-]+( [\w-]+)?: error: \S.*$")


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    """Negative: the signal that ended it."""
    output: str
    """Of stdout and stderr."""
    seconds: float

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL

    @property
    def refusal(self) -> str:
        """The sentence with which it refused; empty where it did not, or said more than a sentence."""
        lines = [line for line in self.output.splitlines() if _SENTENCE.match(line)]
        refused = self.status > 0 and lines and "Traceback (most recent call last)" not in self.output
        return lines[-1] if refused else ""


def prepare_to_fork() -> None:
    """Import what the commands import, and make what they start children of this process as well.

    Call this once, before any computation: threads do not survive a fork.
    """
    adopt_orphans()
    preload()
    # a disk that is full for a moment is waited for in seconds by default
    saving.WAITS = (0.01, 0.02)
    Runner.popen = Forked


def adopt_orphans() -> None:
    """Let what an ended command leaves running become this process's child."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(argv: Sequence[str], log: Path, before: Callable[[], None] = lambda: None) -> int:
    """Start a console command in a session of its own.

    Args:
        log: gets stdout and stderr.
        before: is called in the child, first.

    Returns:
        its process id.
    """
    with log.open("wb") as out:
        pid = os.fork()
        if pid == 0:
            become(argv, out.fileno(), {}, before)
    return pid


def wait(pid: int, log: Path, kill_after: float | None = None, patience: float = 120.0) -> Ended:
    """Wait for a command to end; kill it (SIGKILL) after so many seconds.

    Raises:
        TimeoutError: it has not ended within ``patience`` seconds; it and its children are killed.
    """
    began, kill = time.monotonic(), kill_after
    while True:
        ended, status, _ = os.wait4(pid, os.WNOHANG)
        seconds = time.monotonic() - began
        if ended:
            return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"), seconds)
        if kill is not None and seconds >= kill:
            os.kill(pid, signal.SIGKILL)
            kill = None
        if seconds > patience:
            kill_descendants()
            os.waitpid(pid, 0)
            raise TimeoutError(f"it had not ended after {patience:g} seconds")
        time.sleep(_POLL)


def run(argv: Sequence[str], log: Path, before: Callable[[], None] = lambda: None) -> Ended:
    """Run a console command to its end."""
    return wait(start(argv, log, before), log)


def descendants() -> set[int]:
    """Return the processes that this one has started, and those that they have; killed ones not."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for tasks in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                children = {int(pid) for pid in tasks.read_text().split()}
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
            waiting += children - found
            found |= children
    return found


def kill_descendants() -> None:
    """Kill (SIGKILL) every process that this one has started, and those that they have."""
    for pid in descendants():
        os.kill(pid, signal.SIGKILL)


def wait_for_orphans(patience: float = 60.0) -> None:
    """Wait for what killed commands have left running; they are this process's children by now.

    Raises:
        TimeoutError: something has not ended by then; it is killed.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended and time.monotonic() > deadline:
            kill_descendants()
            raise TimeoutError(f"a process that a killed command had started runs on after {patience:g} seconds")
        if not ended:
            time.sleep(_POLL)
