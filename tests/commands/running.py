"""Runs commands as a user does, in processes of their own, and reads what they print."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from warm_processes import run_script

PLUGIN = str(Path(find_spec("fairseq_residuals").origin).parent)
"""What --user-dir is given."""
BIN = Path(sys.executable).parent
USE_A_MODEL = ("fairseq-train", "fairseq-generate", "fairseq-interactive", "fairseq-validate", "fairseq-eval-lm")
GIVE_UP = 300
"""Seconds after which a command counts as hung; no test asserts on time."""


def environment() -> dict[str, str]:
    """This process's, with one thread and without what a launcher of distributed jobs may have left."""
    launchers = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_JOB_ID")
    kept = {k: v for k, v in os.environ.items() if k not in launchers}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Run:
    """A command that has ended."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str

    def records(self, tag: str) -> list[dict[str, Any]]:
        """What fairseq logged as JSON under ``tag``: train_inner (every update), train (every epoch), valid.

        fairseq-hydra-train logs in hydra's format.
        """
        lines = re.findall(rf"^\S.*(?: \| INFO \| {tag} \| |\[{tag}\]\[INFO\] - )(\{{.*\}})$", self.out, re.M)
        return [{k: _number(v) for k, v in json.loads(line).items()} for line in lines]

    @property
    def updates(self) -> dict[int, dict[str, float]]:
        """By update number, what training logged about it (times and speeds left out)."""
        kept = ("loss", "nll_loss", "ppl", "gnorm", "lr", "bsz", "wpb")
        return {int(r["num_updates"]): {k: r[k] for k in kept if k in r} for r in self.records("train_inner")}

    @property
    def losses(self) -> list[float]:
        """The training loss of each update, as logged (3 decimals)."""
        return [r["loss"] for _, r in sorted(self.updates.items())]

    def hypotheses(self) -> dict[str, dict[int, list[str]]]:
        """By letter (S, T, H, D, P) and sentence number, the fields that generate or interactive printed."""
        found: dict[str, dict[int, list[str]]] = {}
        for letter, number, fields in re.findall(r"^([STHDP])-(\d+)\t(.*)$", self.out, re.M):
            found.setdefault(letter, {}).setdefault(int(number), fields.split("\t"))
        return found

    def __str__(self) -> str:
        what = f"{' '.join(self.argv)}\nexit status {self.status}"
        return f"{what}\n-- stdout\n{self.out[-4000:]}\n-- stderr\n{self.err[-4000:]}"


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def argv_of(command: str, *args: Any) -> list[str]:
    """The command line of a console command of this environment."""
    return [str(BIN / command), *map(str, args)]


def execute(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    stdin: str = "",
    fresh: bool = False,
    limit: Callable[[], None] | None = None,
) -> Run:
    """Runs a command line to its end, whatever its exit status.

    Args:
        fresh: in a new process also where one that has imported fairseq and the plugin could be forked; so runs what
            uses a model and does not name the plugin.
        limit: is called in a forked process before the command is run.
    """
    name = Path(argv[0]).name
    without_plugin = name in USE_A_MODEL and "--user-dir" not in argv
    if fresh or without_plugin or Path(argv[0]).parent != BIN or not name.startswith("fairseq-"):
        ended = subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            cwd=cwd,
            env=environment(),
            timeout=GIVE_UP,
            check=False,
        )
        return Run(tuple(argv), ended.returncode, ended.stdout, ended.stderr)
    with tempfile.TemporaryDirectory() as folder:
        streams = Path(folder)
        (streams / "in").write_text(stdin, encoding="utf-8")
        place = {"cwd": cwd or Path.cwd(), "environment": environment(), "streams": streams}
        status = run_script(argv, **place, timeout=GIVE_UP, limit=limit)
        return Run(tuple(argv), status, *((streams / name).read_text(encoding="utf-8") for name in ("out", "err")))


def succeed(command: str, *args: Any, cwd: Path | None = None, stdin: str = "") -> Run:
    """Runs a console command, which has to exit with 0."""
    run = execute(argv_of(command, *args), cwd=cwd, stdin=stdin)
    assert run.status == 0, run
    return run


def kill_at(pattern: str, command: str, *args: Any) -> None:
    """Runs a console command and kills it (SIGKILL) when a line that it prints matches ``pattern``.

    The pipe holds a single page, so the command cannot run far ahead of the line being read.
    """
    argv = argv_of(command, *args)
    lines = []
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, pipesize=4096, env=environment()
    ) as process:
        assert process.stdout is not None
        for raw in iter(process.stdout.readline, b""):
            lines.append(raw.decode())
            if re.search(pattern, lines[-1]):
                process.kill()
                return
    raise AssertionError(f"{' '.join(argv)} ended before it printed {pattern!r}:\n{''.join(lines)[-4000:]}")


def load(path: Path) -> dict[str, Any]:
    """A checkpoint that these tests wrote themselves."""
    return torch.load(path, map_location="cpu", weights_only=False)


def weights(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The parameters, without fairseq's markers (``_float_tensor`` is a buffer that it never fills)."""
    return {k: v for k, v in checkpoint["model"].items() if not k.endswith((".version", "._float_tensor"))}


def assert_same(a: Any, b: Any, atol: float = 0) -> None:
    """The same nested values, tensors bit for bit, or to within ``atol``."""
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def assert_same_weights(*folders: Path, atol: float = 0) -> None:
    """The last checkpoints of two folders have the same parameters, bit for bit, or to within ``atol``."""
    assert_same(*(weights(load(folder / "checkpoint_last.pt")) for folder in folders), atol)


def assert_one_sentence(run: Run, *expected: str) -> None:
    """The command failed and said why: one line on stderr, "<command>: error: ...", with all of ``expected``.

    (Some of fairseq's commands log to stderr as well.)
    """
    assert run.status not in (0, None), run
    assert "Traceback" not in run.out + run.err, run
    lines = [line for line in run.err.splitlines() if not re.search(r" \| (INFO|WARNING) \| ", line)]
    assert len(lines) == 1, run
    assert re.match(rf"{re.escape(Path(run.argv[0]).name)}( [\w-]+)?: error: \S", lines[0]), run
    for words in expected:
        assert words in lines[0], run


def assert_argparse_says(run: Run, *expected: str) -> None:
    """argparse refused the command line, after its usage, with a line that has all of ``expected``."""
    assert run.status == 2, run
    assert "Traceback" not in run.out + run.err, run
    last = run.err.splitlines()[-1]
    assert last.startswith(f"{Path(run.argv[0]).name}: error: "), run
    for words in expected:
        assert words in last, run


def files_under(*folders: Path) -> list[Path]:
    """Every file that a command has left in ``folders``, which need not exist."""
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
