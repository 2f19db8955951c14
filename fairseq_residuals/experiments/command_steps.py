"""Runs commands once each: what is done is not done again, what was cut off does not look done."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments.job import Evaluation, Job
from fairseq_residuals.utils.atomic_write import whole_file
from fairseq_residuals.utils.documents import read_json

_STARTED = "# started "
_DIVERGED = re.compile(r"^FloatingPointError: (.*)$", re.M)
LINES_SHOWN = 15


class Diverged(Exception):
    """Training ended because numbers overflowed; the message is fairseq's."""


def prepare(job: Job) -> None:
    """Prepares the corpus unless that is done.

    Raises:
        UserError: it failed.
    """
    if not (job.corpus / "prepared.json").is_file():
        job.corpus.mkdir(parents=True, exist_ok=True)
        _run(job.prepare, job.corpus.parent / f"{job.corpus.name}.prepare.log")


def train(job: Job) -> None:
    """Trains unless that is done, from where an earlier attempt left off.

    Raises:
        Diverged: fairseq gave up, now or in an earlier call.
        UserError: it failed in another way.
    """
    done, failed = job.folder / "trained.json", job.folder / "failed.json"
    if failed.is_file():
        raise Diverged(read_json(failed)["reason"])
    if not done.is_file():
        log = job.folder / f"train.{len(logs_of(job)) + 1:03}.log"
        try:
            _run(job.train, log)
        except UserError:
            reason = _DIVERGED.findall(log.read_text(encoding="utf-8", errors="replace"))
            if reason:
                _write_json(failed, {"reason": reason[-1]})
                raise Diverged(reason[-1]) from None
            raise
        _write_json(done, {"hours": hours(job)})


def average(job: Job) -> None:
    """Averages checkpoints, where the recipe does, unless that is done.

    Raises:
        UserError: it failed.
    """
    if job.average and not job.checkpoint.is_file():
        _run(job.average, job.folder / "average.log")


def evaluate(evaluation: Evaluation) -> None:
    """Runs one of fairseq's tools on the trained model unless that is done.

    Raises:
        UserError: it failed.
    """
    if not evaluation.log.is_file():
        partial = evaluation.log.with_name(f"{evaluation.log.name}.partial")
        _run(evaluation.command, partial)
        partial.rename(evaluation.log)


def logs_of(job: Job) -> list[Path]:
    """The logs of all attempts to train, the first one first."""
    return sorted(job.folder.glob("train.*.log"))


def hours(job: Job) -> float:
    """What the attempts to train have taken, from their logs: a killed one counts up to the last thing it said."""
    seconds = 0.0
    for log in logs_of(job):
        with log.open(encoding="utf-8", errors="replace") as lines:
            first = lines.readline()
        started = datetime.fromisoformat(first.removeprefix(_STARTED).strip())
        seconds += log.stat().st_mtime - started.timestamp()
    return seconds / 3600


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run's folder.

    Raises:
        UserError: another one is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is at work in {folder}") from None
        # what is started holds the lock too: if this process is killed, no second one trains beside its training
        os.set_inheritable(lock.fileno(), True)
        yield


def _run(command: Sequence[str], log: Path) -> None:
    print(f"$ {shlex.join(command)}\n  (log: {log})", flush=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with log.open("w", encoding="utf-8") as out:
        print(f"{_STARTED}{datetime.now().astimezone().isoformat()}", file=out, flush=True)
        process = subprocess.Popen(
            [_program(command[0]), *command[1:]],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            close_fds=False,
        )
        try:
            status = process.wait()
        finally:
            if process.poll() is None:  # interrupted
                process.terminate()
                process.wait()
    if status != 0:
        text = log.read_text(encoding="utf-8", errors="replace").rstrip()
        print("\n".join(text.splitlines()[-LINES_SHOWN:]), file=sys.stderr)
        raise UserError(f"{command[0]} failed with status {status}; {log} has all that it said")


def _program(name: str) -> str:
    own = Path(sysconfig.get_path("scripts"), name)
    found = str(own) if own.is_file() else shutil.which(name)
    if found is None:
        raise UserError(f"the program {name} is not installed")
    return found


def _write_json(path: Path, content: Any) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(content))
