"""``fairseq-residuals``, whose commands are forks on one core: each import takes seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from warm_processes import become, run_script

from fairseq_residuals import __main__
from fairseq_residuals.lab.recipes.compose import ONE_AT_A_TIME
from fairseq_residuals.lab.recipes.runner import Runner


class Forked:
    """In place of ``subprocess.Popen``, as the runner calls it: a fork instead of a new Python."""

    def __init__(self, argv: Sequence[str], stdout: Any, env: Mapping[str, str], **_: Any) -> None:
        self.returncode: int | None = None
        with ONE_AT_A_TIME:  # a fork beside a thread that composes settings would have half of hydra's state
            self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            become(argv, env, (os.open(os.devnull, os.O_RDONLY), stdout.fileno(), stdout.fileno()))


def printed_by_forks(call: Sequence[str], streams: Path) -> str:
    """What the command prints, which has to succeed.

    Args:
        streams: a new folder for its input and output.
    """
    streams.mkdir()
    (streams / "in").touch()
    status = run_script([__file__, *call], cwd=streams, environment=os.environ, streams=streams, timeout=600)
    assert status == 0, (streams / "err").read_text("utf-8")
    return (streams / "out").read_text("utf-8")


def main() -> int:
    # one core, one worker: a process of a pool takes ten seconds to end where torch._dynamo was imported before a fork
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)  # threads do not survive a fork
    Runner.popen = Forked
    return __main__.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
