"""Two processes that train together (gloo), are stopped and go on, are the uninterrupted pair to the last bit: batches,
losses, gradients, random state, parameters, optimizer; in three tasks, and in each precision with each optimizer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from exact_pair import TASKS
from running import GIVE_UP, environment
from test_exact_resume import OPTIMIZERS, PRECISIONS
from test_exact_runs import CASES

from fairseq_residuals.wirings.core.registry import VARIANTS

TESTS = Path(__file__).parent.parent


def test_two_processes_go_on_exactly(data_of, tmp_path):
    """One pair of processes for all cases: each would import fairseq anew."""
    data = [str(data_of(CASES[case][0])) for case in TASKS]
    # before them what is tested: a folder of tests bears the name of one of its packages
    path = {"PYTHONPATH": f"{TESTS.parent}:{TESTS / 'commands'}:{TESTS}"}
    argv = [sys.executable, str(TESTS / "commands" / "exact_pair.py")]
    logs = [tmp_path / f"rank{rank}.log" for rank in range(2)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("w") as out:
            command = [*argv, str(rank), str(tmp_path), *data]
            processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment() | path))
    statuses = [process.wait(GIVE_UP) for process in processes]
    tails = "\n".join(log.read_text()[-3000:] for log in logs)
    assert statuses == [0, 0], tails
    for log in logs:
        lines = log.read_text().splitlines()
        ways = {f"{precision} {optimizer}" for precision in PRECISIONS for optimizer in OPTIMIZERS}
        assert {" ".join(line.split()[1:]) for line in lines if line.partition(" ")[0] in VARIANTS} == ways
        assert set(TASKS) <= set(lines)
