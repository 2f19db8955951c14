"""Runs and their child processes: several at a time, none that outlives its parent, each with a log."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from fairseq_residuals.lab.recipes.runner import CommandFailed, Run, Runner, environments
from fairseq_residuals.wirings.core.errors import UserError

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_a_failing_command_tells_where_its_log_is_and_how_that_ends(tmp_path: Path) -> None:
    log = tmp_path / "step.log"
    program = "import sys; print('\\n'.join(map(str, range(100)))); sys.exit('disk on fire')"
    with pytest.raises(CommandFailed) as failure:
        Runner().command(python(program), log)
    assert "status 1" in str(failure.value) and str(log) in str(failure.value)
    lines = failure.value.tail().splitlines()
    assert lines[-1] == "disk on fire" and "10" not in lines
    assert log.read_text().splitlines()[0].startswith("# started 20")


def test_the_log_of_a_failing_command_ends_in_its_error_and_in_no_advice_of_hydra(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import hydra\n@hydra.main(version_base='1.1')\ndef main(_): 1 / 0\nmain()\n")
    with pytest.raises(CommandFailed) as failure:
        Runner().command([sys.executable, str(job), f"hydra.run.dir={tmp_path}"], tmp_path / "step.log")
    assert failure.value.tail(lines=1) == "ZeroDivisionError: division by zero"


def test_commands_that_are_stopped_end_even_if_they_ignore_the_gentle_signal(tmp_path: Path) -> None:
    log, failures, runner = tmp_path / "log", [], Runner()

    def run() -> None:
        try:
            runner.command(python(STUBBORN), log)
        except UserError as failure:
            failures.append(str(failure))

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(log)
    runner.stop(patience=0.2)
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert f"status {-signal.SIGKILL}" in failures[0]
    with pytest.raises(UserError, match="being stopped"):
        runner.command(python("print()"), log)


def wait_for(log: Path) -> None:
    while not (log.exists() and "up" in log.read_text().splitlines()):
        time.sleep(0.05)


def test_a_run_that_fails_stops_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner, log = Runner([{}, {}]), tmp_path / "other.log"

    def fail(run: Run) -> None:
        wait_for(log)
        runner.command(python("import sys; sys.exit('disk on fire')"), tmp_path / "failing.log")

    def go_on(run: Run) -> None:
        runner.command(python("import os, time; print(os.getpid()); print('up', flush=True); time.sleep(600)"), log)

    def never(run: Run) -> None:
        raise AssertionError("this run began after another had failed")

    with pytest.raises(CommandFailed, match=r"failing\.log"):
        runner.run_all([Run("a", fail), Run("b", go_on), Run("c", never)])
    assert "disk on fire" in capsys.readouterr().err
    process = int(log.read_text().splitlines()[2])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_runs_side_by_side_have_environments_of_their_own(tmp_path: Path) -> None:
    """As many at a time as there are environments; what ends is told in this thread, one by one."""
    runner = Runner([{"SLOT": "a"}, {"SLOT": "b"}])
    at_work, most, finished = set(), [], []

    def work(number: int, run: Run) -> None:
        at_work.add(run.name)
        most.append(len(at_work))
        runner.command(python("import os; print(os.environ['SLOT'])"), tmp_path / f"{number}.log")
        at_work.discard(run.name)

    def tell(run: Run) -> None:
        assert threading.current_thread() is threading.main_thread()
        finished.append(run.name)

    runner.run_all([Run(str(number), partial(work, number)) for number in range(5)], tell)
    assert sorted(finished) == list("01234") and max(most) <= 2
    assert {(tmp_path / f"{number}.log").read_text().splitlines()[-1] for number in range(5)} <= {"a", "b"}


def test_no_two_runs_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environments(jobs=2, gpus=2) == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert environments(jobs=2, gpus=1) == [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "7"}]
    assert environments(jobs=1, gpus=8) == [{}]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert all(int(e["OMP_NUM_THREADS"]) >= 1 for e in environments(jobs=64, gpus=0))
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")  # OpenMP's form for threads within threads
    runner, told = Runner(environments(jobs=2, gpus=0)), []
    assert [e["OMP_NUM_THREADS"] for e in runner.environments] == ["2,1", "2,1"]
    runner.run_all([Run("it", lambda run: told.append(runner.threads))])
    assert told == ["2,1"]


def test_progress_is_read_from_the_training_log(tmp_path: Path) -> None:
    run, log = Run("it", print, updates=20), tmp_path / "train.log"
    assert run.progress() == (0, "waiting")
    run.begin("training", log)
    assert run.progress() == (0, "training")
    inner = '[2026][train_inner][INFO] - {"epoch": 1, "loss": "9.5", "num_updates": "10"}\n'
    log.write_text(inner)
    assert run.progress() == (10, "train loss 9.50 bits")
    with log.open("a") as more:
        # the loss is smoothed, and the perplexity is not
        more.write('[2026][valid][INFO] - {"valid_loss": "4.5", "valid_ppl": "8", "valid_num_updates": "10"}\n')
    assert run.progress() == (10, "train loss 9.50 bits, valid ppl 8.0")
    run.begin("averaging")
    assert run.progress() == (10, "train loss 9.50 bits, averaging")


def test_a_program_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="the program fairseq-dance is not installed"):
        Runner().command(["fairseq-dance"], tmp_path / "log")
