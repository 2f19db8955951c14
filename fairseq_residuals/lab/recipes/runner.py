"""Runs and their child processes: several runs at a time, a log for each command, no child that outlives its parent.

Where runs are stands on stderr, a line now and then. stdout has commands and results.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue

import torch

from fairseq_residuals.lab.data.parallel_map import cores
from fairseq_residuals.lab.look.training_log import TRAIN, VALID, Log
from fairseq_residuals.plugin.progress import SECONDS_BETWEEN_LINES, say
from fairseq_residuals.wirings.core.errors import UserError

STARTED = "# started "
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LOG_LINES_SHOWN = 15
INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""


def environments(jobs: int, gpus: int) -> list[dict[str, str]]:
    """Return what is added to the environment of each of ``jobs`` runs side by side, so that no two share a device.

    Args:
        gpus: of each run; 0: the cores are shared out.
    """
    if jobs == 1:
        return [{}]
    if gpus == 0:
        own = {key: os.environ[key] for key in THREADS if key in os.environ}
        return [dict.fromkeys(THREADS, str(max(1, cores() // jobs))) | own for _ in range(jobs)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(jobs * gpus)))).split(",")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(visible[gpus * i : gpus * (i + 1)])} for i in range(jobs)]


class CommandFailed(UserError):
    """A command ended with an error; its log says why."""

    def __init__(self, message: str, log: Path) -> None:
        super().__init__(message)
        self.log = log

    def tail(self, lines: int = LOG_LINES_SHOWN) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace").rstrip()
        return "\n".join(text.splitlines()[-lines:])


@dataclass(eq=False)
class Run:
    """Something to do in a thread of its own, mostly by child processes; one training and what follows it."""

    name: str
    work: Callable[[Run], None]
    updates: int = 0
    """Updates of its training."""
    stage: str = "waiting"
    ended: bool = False
    _training: Log | None = None

    def begin(self, stage: str, training: Path | None = None) -> None:
        """Say what the run is at; ``training`` is the log of a training that begins."""
        self.stage = stage
        if training is not None:
            self._training = Log(training)

    def progress(self) -> tuple[int, str]:
        """Return the updates that are done, and what to say about them."""
        if self._training is None:
            return 0, self.stage
        log = self._training.read_on()
        loss, valid = log.last("loss", TRAIN), log.last("ppl", VALID)
        if loss is None:
            return 0, self.stage
        said = [f"train loss {loss:.2f} bits"]
        if self.stage != "training":
            said.append(self.stage)
        elif valid is not None:
            said.append(f"valid ppl {valid:.1f}")
        return log.records[-1].update, ", ".join(said)


@contextmanager
def lines(runs: Sequence[Run]) -> Iterator[Callable[[], None]]:
    """Yield a function to call often, which now and then prints a line for each run that got on or has ended."""
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


class Runner:
    """Runs commands, from several threads too.

    Args:
        environments: what is added to the environment of child processes: one mapping for each run that may be under
            way at the same time.
        echo: print each command, with the path of its log, on stdout when it starts.
    """

    def __init__(self, environments: Sequence[Mapping[str, str]] = ({},), echo: bool = False) -> None:
        self.environments, self.echo = environments, echo
        self._own = threading.local()
        self._running: set[int] = set()
        self.stopping = False
        """Whether whatever ends now was ended, and did not fail by itself."""
        self._lock = threading.Lock()

    @property
    def threads(self) -> str:
        """PyTorch's threads in a command of the run that asks; a list such as "2,1" where OpenMP is given one."""
        return str(getattr(self._own, "environment", {}).get(THREADS[0], torch.get_num_threads()))

    def say(self, text: str) -> None:
        """Print ``text`` where commands are printed."""
        if self.echo:
            print(text, flush=True)

    def command(self, command: Sequence[str], log: Path, holds: Sequence[int] = ()) -> None:
        """Run a program to its end; its log begins with the time and the command.

        Call this in :meth:`run_all`: Ctrl-C would tear the main thread out of here while the child still runs.

        Args:
            holds: descriptors of locks that the child shall hold too.

        Raises:
            CommandFailed: the exit status was not 0.
            UserError: the program is not installed.
        """
        self.say(f"$ {shlex.join(command)}\n  (log: {log})")
        path = program(command[0])
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as out:
            started = datetime.now().astimezone().isoformat()
            # without HYDRA_FULL_ERROR, a log ends in hydra's advice to set it, and not in the error
            common = {"PYTHONUNBUFFERED": "1", "HYDRA_FULL_ERROR": "1"}
            print(f"{STARTED}{started}\n# $ {shlex.join(command)}", file=out, flush=True)
            with self._lock:
                if self.stopping:
                    raise UserError("the runs are being stopped")
                process = subprocess.Popen(
                    [path, *command[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=os.environ | common | dict(getattr(self._own, "environment", {})),
                    pass_fds=holds,
                    start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends its children
                )
                self._running.add(process.pid)
        process.wait()
        with self._lock:
            self._running.discard(process.pid)
        if process.returncode != 0:
            message = f"{command[0]} failed with status {process.returncode}; {log} has all that it said"
            raise CommandFailed(message, log)

    def run_all(self, runs: list[Run], finished: Callable[[Run], None] = lambda run: None) -> None:
        """Do all runs, as many at a time as there are environments, and show on stderr where they are.

        Args:
            runs: taken from its front; it is empty in the end.
            finished: is called with each run that came to its end, in this thread, and may add to ``runs``.

        Raises:
            UserError: one of them failed; the others are stopped.
        """
        environments: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for environment in self.environments:
            environments.put(environment)

        def begin_thread() -> None:
            self._own.environment = environments.get()

        begun: list[Run] = []
        with (
            terminable(),
            ThreadPoolExecutor(len(self.environments), initializer=begin_thread) as pool,
            lines(begun) as refresh,
        ):
            pending: dict[Future[None], Run] = {}
            try:
                while runs or pending:
                    # a run is given to the pool when it can begin: a thread that has just failed would take the next
                    while runs and len(pending) < len(self.environments):
                        begun.append(runs.pop(0))
                        pending[pool.submit(begun[-1].work, begun[-1])] = begun[-1]
                    for future in wait(pending, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        run = pending.pop(future)
                        future.result()
                        run.ended = True
                        finished(run)
                    refresh()
            except BaseException as error:
                if isinstance(error, CommandFailed):
                    print(error.tail(), file=sys.stderr)
                self.stop()  # before the pool waits for its threads
                raise

    def stop(self, patience: float = 5.0) -> None:
        """End whatever runs, gently at first, and let nothing new start."""
        with self._lock:
            self.stopping = True
        for end in (signal.SIGTERM, signal.SIGKILL):
            with self._lock:
                for pid in self._running:
                    with suppress(ProcessLookupError):  # it ended by itself just now
                        os.killpg(pid, end)
            deadline = time.monotonic() + patience
            while self._running and time.monotonic() < deadline:
                time.sleep(0.05)


@contextmanager
def terminable() -> Iterator[None]:
    """Take being told to end (SIGTERM) as Ctrl-C, which ends the child processes too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def program(name: str) -> str:
    """Return the path of a console command, one that is installed beside this Python first.

    Raises:
        UserError: it is not installed.
    """
    own = Path(sysconfig.get_path("scripts"), name)
    path = str(own) if own.is_file() else shutil.which(name)
    if path is None:
        raise UserError(f"the program {name} is not installed")
    return path
