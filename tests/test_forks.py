"""Commands as forks: they say, return and see what new processes do, and the process that forks stays as it was."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from fairseq_residuals.cli import __main__ as cli
from fairseq_residuals.experiments import forks, smoke
from fairseq_residuals.experiments.compose import compose
from fairseq_residuals.experiments.runner import CommandFailed, Runner
from fairseq_residuals.verification.reliability.disks import in_child

FAILING = ["fairseq-residuals", "average", "--inputs", "nowhere", "--output", "x.pt", "--num-epoch-checkpoints", "2"]
PRINTING = ["fairseq-residuals", "prepare", "joeynmt_de_en", "--sources"]
PROGRAM = f"""
import json, os, sys
from pathlib import Path
from fairseq_residuals.experiments.forks import ForkingRunner
from fairseq_residuals.experiments.runner import CommandFailed, Run

runner = ForkingRunner(({{"MIRROR": "/of/the/child"}},))
before = list(sys.argv), dict(os.environ), sys.stdout
usage = []

def work(run):
    usage.append(runner.command({PRINTING}, Path("printing.log")))
    try:
        runner.command({FAILING}, Path("failing.log"))
    except CommandFailed as failure:
        print(json.dumps([str(failure), failure.tail(1), usage[0].cpu_seconds < 60]))

runner.run_all([Run("forks", work)])
assert before == (list(sys.argv), dict(os.environ), sys.stdout)
"""


def test_a_fork_does_what_a_new_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    said, last, measured = json.loads(done.stdout)
    forked = {name: Path(name).read_text().splitlines() for name in ("printing.log", "failing.log")}
    monkeypatch.setenv("MIRROR", "/of/the/child")
    new = Runner()
    new.command(PRINTING, Path("printing.log"))
    with pytest.raises(CommandFailed) as failure:
        new.command(FAILING, Path("failing.log"))
    assert (said, last, measured) == (str(failure.value), failure.value.tail(1), True)
    for name, lines in forked.items():
        assert lines[1:] == Path(name).read_text().splitlines()[1:], name  # the first says when it began
    assert len(forked["printing.log"]) > 3


def test_a_smoke_run_forks_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runners: list[Runner] = []
    monkeypatch.setattr(forks, "preload", lambda: None)  # it would stay in this process
    monkeypatch.setattr(smoke, "smoke", lambda table, settings, runner, rows, columns: runners.append(runner))
    assert cli.main(["reproduce", "b2t/table4", "--gpus", "0", "--smoke"]) == 0
    assert [type(runner) for runner in runners] == [forks.ForkingRunner]


def test_a_fork_waits_until_another_thread_has_composed_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it has hydra's state of that moment, and fairseq-hydra-train refuses to begin."""
    composing, original = threading.Event(), hydra.compose

    def slow(*args: Any, **kwargs: Any) -> Any:
        composing.set()
        time.sleep(0.2)
        return original(*args, **kwargs)

    monkeypatch.setattr(hydra, "compose", slow)
    thread = threading.Thread(target=compose, args=(Path(__file__).parents[1] / "configs", "b2t/table1/18l_b2t"))
    thread.start()
    composing.wait()
    begun = in_child(lambda: GlobalHydra.instance().is_initialized())
    thread.join()
    assert not begun
