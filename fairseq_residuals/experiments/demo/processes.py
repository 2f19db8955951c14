"""Child processes with a log each, none of which outlives the demo."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from fairseq_residuals.core.errors import UserError

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
LOG_LINES_SHOWN = 15


class StepFailed(Exception):
    """A command ended with an error; the message shows the end of its log and where the log is."""


def program(name: str) -> str:
    """The path of a console command that is installed beside this Python.

    Raises:
        UserError: it is not installed.
    """
    path = Path(sysconfig.get_path("scripts"), name)
    if not path.is_file():
        raise UserError(f"{path} is missing: run scripts/demo.sh, which installs it")
    return str(path)


class Children:
    """Runs commands, also from several threads; the end of the ``with`` block stops whatever still runs."""

    def __init__(self, inherited_fds: Sequence[int] = ()) -> None:
        self._inherited_fds = inherited_fds
        self._running: set[int] = set()
        self._stopping = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(
        self, command: Sequence[str], log: Path, stdin: Path = Path(os.devnull), stdout: Path | None = None
    ) -> float:
        """Runs ``command`` to its end and returns the CPU seconds it took, its own children included.

        The log gets the command, its stderr, and its stdout unless ``stdout`` names a file for it. Call this
        from any thread but the main one, which Ctrl-C would tear out of here while the child still runs.

        Raises:
            StepFailed: the exit status was not 0.
        """
        with log.open("a", encoding="utf-8") as messages, stdin.open("rb") as source:
            print(f"$ {shlex.join(command)}", file=messages, flush=True)
            with stdout.open("w") if stdout else nullcontext(messages) as target:
                status, seconds = self._spawn(command, source, target, messages)
        if status != 0:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            heading = f"{Path(command[0]).name} failed with status {status}; its log {log} ends with"
            raise StepFailed("\n".join([heading, *lines]))
        return seconds

    def _spawn(self, command: Sequence[str], stdin: IO[Any], stdout: IO[Any], stderr: IO[Any]) -> tuple[int, float]:
        with self._lock:
            if self._stopping:
                raise StepFailed("the demo is being stopped")
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=os.environ | ONE_THREAD,
                pass_fds=self._inherited_fds,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends its children
            )
            self._running.add(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        self._running.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage.ru_utime + usage.ru_stime

    def stop(self, patience: float = 5.0) -> None:
        """Ends whatever runs, gently at first, and lets nothing new start."""
        with self._lock:
            self._stopping = True
        for end in (signal.SIGTERM, signal.SIGKILL):
            for pid in tuple(self._running):
                try:
                    os.killpg(pid, end)
                except ProcessLookupError:  # it ended by itself just now
                    continue
            deadline = time.monotonic() + patience
            while self._running and time.monotonic() < deadline:
                time.sleep(0.05)
