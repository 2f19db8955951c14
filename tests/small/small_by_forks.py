"""``fairseq-residuals``, whose commands are forks on one core: each import takes seconds."""

from __future__ import annotations

import gc
import importlib
import io
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from warm_processes import run_script

from fairseq_residuals.lab.recipes.compose import ONE_AT_A_TIME

COMMANDS = ("fairseq-residuals", "fairseq-hydra-train", "fairseq-generate", "fairseq-eval-lm")
MODULES = ("fairseq_residuals.__main__", "fairseq_residuals.plugin.register", "fairseq.trainer", "torch._dynamo")
"""What the commands import later. PyTorch's optimizers import its compiler when the first of them is made."""


@cache
def program(name: str) -> Callable[[], Any]:
    """Return the function behind a console command of this environment."""
    (entry,) = entry_points(group="console_scripts", name=name)
    function: Callable[[], Any] = entry.load()
    return function


def preload() -> None:
    """Import what the commands import.

    Call this once, before any computation: threads do not survive a fork. A GPU must not have been used either.
    """
    import torch

    torch.set_num_threads(1)
    for name in COMMANDS:
        program(name)
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # collecting what was imported would copy its memory in every fork


class Forked:
    """In place of ``subprocess.Popen``, as the runner calls it: a fork instead of a new Python."""

    def __init__(self, argv: Sequence[str], stdout: Any, env: Mapping[str, str], **_: Any) -> None:
        self.returncode: int | None = None
        with ONE_AT_A_TIME:  # a fork beside a thread that composes settings would have half of hydra's state
            self.pid = os.fork()
        if self.pid == 0:
            become(argv, stdout.fileno(), dict(env))


def become(argv: Sequence[str], output: int, environment: dict[str, str]) -> None:
    """Run the command in this child, and end it.

    Args:
        output: the descriptor of what gets stdout and stderr.
        environment: is added to the environment.
    """
    status = 70
    try:
        os.setsid()
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.FileIO(n, "w", closefd=False), write_through=True) for n in (1, 2)
        )
        sys.stdin = io.StringIO()
        os.environ.update(environment)
        tempfile.tempdir = None
        sys.argv = [Path(argv[0]).name, *argv[1:]]
        status = program(sys.argv[0])() or 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        for child in multiprocessing.active_children():  # as Python does at its end
            child.terminate()
        # not sys.exit: it would unwind the parent's stack, which this process has a copy of
        os._exit(status)


def printed_by_forks(call: Sequence[str], streams: Path, **environment: str) -> str:
    """What the command prints, which has to succeed.

    Args:
        streams: a new folder for its input and output.
    """
    streams.mkdir()
    (streams / "in").touch()
    status = run_script(
        [__file__, *call], cwd=streams, environment=os.environ | environment, streams=streams, timeout=600
    )
    assert status == 0, (streams / "err").read_text("utf-8")
    return (streams / "out").read_text("utf-8")


def main() -> int:
    from fairseq_residuals import __main__
    from fairseq_residuals.lab.recipes.runner import Runner

    # one core, one worker: a process of a pool takes ten seconds to end where torch._dynamo was imported before a fork
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    preload()
    Runner.popen = Forked
    return __main__.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
