"""Commands in forked copies of one process that has everything imported: new processes take seconds to start."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import fairseq_residuals

PLUGIN = str(Path(fairseq_residuals.__file__).parent)
SECONDS = int(os.environ.get("HOSTILE_SECONDS", "2"))
"""Of the processor, for one hostile input; the suite, which asserts on no time, gives more."""
GIGABYTE = 1 << 30
FAIRSEQ = {
    "fairseq-train": "train",
    "fairseq-generate": "generate",
    "fairseq-interactive": "interactive",
    "fairseq-validate": "validate",
    "fairseq-eval-lm": "eval_lm",
    "fairseq-hydra-train": "hydra_train",
    "fairseq-preprocess": "preprocess",
    "fairseq-score": "score",
}


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    """Negative: the signal that ended it."""
    out: str
    err: str
    seconds: float
    """Of the processor: others may use the machine too."""


def import_everything() -> None:
    """Import each command's modules and the plugin, so that its forked copies need not."""
    from fairseq_residuals.__main__ import COMMANDS

    for module in (*(f"fairseq_cli.{name}" for name in FAIRSEQ.values()), *COMMANDS.values()):
        importlib.import_module(module)
    fairseq_residuals.register()


def call(argv: Sequence[str]) -> int:
    """Run a console command in this process, and return its exit status."""
    name, *arguments = argv
    sys.argv = [name, *arguments]
    try:
        if name in FAIRSEQ:
            return importlib.import_module(f"fairseq_cli.{FAIRSEQ[name]}").cli_main() or 0
        return importlib.import_module("fairseq_residuals.__main__").main(arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(bool(end.code))


def run(work: Callable[[], int], folder: Path, seconds: int = 10, stdin: str = "") -> Ended:
    """Run ``work`` in a forked copy of this process, in ``folder``, and wait for its end.

    The copy may take a gigabyte of memory beyond what this process has, and write files of a gigabyte.

    Args:
        work: returns an exit status.
        folder: is made if it is missing.
        seconds: of the processor, after which the copy is ended; after ten times as many on the clock, too.
        stdin: what the copy reads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    os.write(files[0], stdin.encode())
    os.lseek(files[0], 0, os.SEEK_SET)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _work(work, folder, seconds, files)
    _, status, used = _wait(child, 10 * seconds)
    texts = []
    for file in files:
        with os.fdopen(file, "rb") as stream:
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Ended(os.waitstatus_to_exitcode(status), texts[1], texts[2], used.ru_utime + used.ru_stime)


def _wait(child: int, seconds: int) -> tuple[int, int, resource.struct_rusage]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended = os.wait4(child, os.WNOHANG)
        if ended[0]:
            return ended
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    return os.wait4(child, 0)


def _work(work: Callable[[], int], folder: Path, seconds: int, files: Sequence[int]) -> None:
    """In the forked copy: never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        limit_memory()
        _limit_seconds(seconds)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def limit_memory() -> None:
    """Let this process take one more gigabyte of memory, and write files of a gigabyte."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GIGABYTE, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIGABYTE, resource.RLIM_INFINITY))


def _limit_seconds(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds, spent + seconds + 1))


def empty(folder: Path) -> None:
    """Remove what is in ``folder``."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
