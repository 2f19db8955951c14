"""Console commands in processes that are forked from one that has imported PyTorch, fairseq and the plugin.

That takes seconds. A command sees what it would see in a process of its own: its script is run as ``__main__``, with
its own environment, folder, stdin, stdout and stderr; only its modules are there before it asks for them. Where it
would spawn processes that import everything anew, it forks them. One process of this kind is started for each process
of the tests, and ends with it.
"""

from __future__ import annotations

import atexit
import functools
import gc
import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NoReturn

import torch

from fairseq_residuals.__main__ import COMMANDS

PRELOADED = ["torch", "torch._dynamo", "fairseq", "fairseq_residuals", "fairseq_residuals.plugin.register"]
"""PyTorch's optimizers import its compiler, which takes a second, when the first of them is made."""
PRELOADED += [f"fairseq_cli.{name}" for name in ("train", "hydra_train", "generate", "interactive", "validate")]
PRELOADED += ["fairseq_cli.eval_lm", "fairseq_cli.preprocess", *COMMANDS.values()]
# not fairseq_cli.score, which takes the standard input that is there when it is imported


@functools.cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def run_script(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    streams: Path,
    timeout: float,
    limit: Callable[[], None] | None = None,
) -> int:
    """Runs a Python script to its end and returns its exit status.

    Args:
        streams: a folder with the file ``in``, the stdin; ``out`` and ``err`` are written there.
        limit: is called in the process before the script is run.

    Raises:
        TimeoutError: the script was killed after ``timeout`` seconds.
    """
    process = _server().Process(target=_run, args=(list(argv), cwd, dict(environment), streams, limit))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{' '.join(argv)} did not end within {timeout} seconds")
    return process.exitcode


def _run(
    argv: list[str], cwd: Path, environment: dict[str, str], streams: Path, limit: Callable[[], None] | None
) -> NoReturn:
    flags = {"in": os.O_RDONLY, "out": os.O_WRONLY | os.O_CREAT, "err": os.O_WRONLY | os.O_CREAT}
    opened = [os.open(streams / name, flag) for name, flag in flags.items()]
    os.chdir(cwd)
    os.environ.clear()
    if limit is not None:
        limit()
    for descriptor, each in enumerate(opened):
        os.dup2(each, descriptor)
    # they are the process's for its whole life
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(fd, "w", 1, encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    for stream, name in ((sys.stdin, "<stdin>"), (sys.stdout, "<stdout>"), (sys.stderr, "<stderr>")):
        stream.buffer.raw.name = name  # type: ignore[attr-defined]
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.argv, sys.path[0] = list(argv), os.path.dirname(argv[0])
    gc.freeze()  # what was imported before the fork stays
    # a child of the server would load data in processes that the server starts, and these import everything anew
    multiprocessing.set_start_method("fork" if sys.platform == "linux" else None, force=True)
    # safe with one thread (see environment() in running.py): there is no pool of threads that a fork would break
    torch.multiprocessing.spawn = functools.partial(torch.multiprocessing.start_processes, start_method="fork")
    status: object = 0
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else 0)
