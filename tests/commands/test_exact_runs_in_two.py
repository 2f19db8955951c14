"""Two processes that train together (gloo), are stopped and go on, are the uninterrupted pair to the last bit: batches,
losses, gradients, random state, parameters, optimizer; in three tasks, and in each precision with each optimizer.

Each of them runs this file: ``python test_exact_runs_in_two.py RANK FOLDER DATA...``. It prints the name of each case
before it, and ends with an AssertionError where a continuation is not the uninterrupted run. Both have to be started;
each case is tried by both at the same time.
"""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from in_process import config_of, recording, train_by
from running import GIVE_UP, environment
from test_exact_resume import OPTIMIZERS, PRECISIONS, assert_resumes_exactly, assert_same, flags_of
from test_exact_runs import CASES, SCHEDULE, STOP, UPDATES, state_of

from fairseq_residuals.wirings.core.registry import VARIANTS

TESTS = Path(__file__).parent.parent
TASKS = [case for case in CASES if case != "speech"]
"""Speech is tried with SpecAugment."""


def pair_flags(rank: int, folder: Path) -> tuple[str, ...]:
    """What fairseq needs to know to be one of two processes."""
    meet = f"file://{folder / 'rendezvous'}"
    return tuple(
        f"--distributed-{key}={value}"
        for key, value in {"world-size": 2, "rank": rank, "backend": "gloo", "init-method": meet}.items()
    )


def try_task(case: str, data: Path, folder: Path, pair: tuple[str, ...], seen: list[Any]) -> None:
    job, precision, optimizer = CASES[case]
    flags = [*job.train_flags(data, folder), *pair, *precision, "--optimizer", optimizer, *SCHEDULE]
    config = config_of(*flags, "--no-epoch-checkpoints", "--disable-validation")
    seen.clear()
    for name, length in (("whole", UPDATES), ("in two", STOP), ("in two", UPDATES)):
        run = copy.deepcopy(config)
        run.checkpoint.save_dir, run.optimization.max_update = str(folder / name), length
        torch.distributed.barrier()  # the last run's files are there
        train_by(run)
    assert len(seen) == 2 * UPDATES
    assert_same(seen[UPDATES:], seen[:UPDATES])
    torch.distributed.barrier()
    assert_same(*(list(state_of(folder / name)) for name in ("in two", "whole")))


def main(rank: int, folder: Path, data: list[Path]) -> None:
    pair = pair_flags(rank, folder)
    job, *_ = CASES[TASKS[0]]
    distributed_utils.distributed_init(config_of(*job.train_flags(data[0], folder), "--optimizer", "adam", *pair))
    ways = list(itertools.product(PRECISIONS, OPTIMIZERS))
    # as many variants as there are ways to train
    for variant, (precision, optimizer) in zip(sorted(VARIANTS)[:: len(VARIANTS) // len(ways)], ways, strict=False):
        print(f"{variant} {precision} {optimizer}", flush=True)
        (folder / variant).mkdir(exist_ok=True)
        assert_resumes_exactly(variant, (*flags_of(precision, optimizer), *pair), folder / variant)
    seen: list[Any] = []
    Trainer.train_step = recording(seen)
    for case, folder_of_data in zip(TASKS, data, strict=True):
        print(case, flush=True)
        try_task(case, folder_of_data, folder / case, pair, seen)


def test_two_processes_go_on_exactly(data_of, tmp_path):
    """One pair of processes for all cases: each would import fairseq anew."""
    data = [str(data_of(CASES[case][0])) for case in TASKS]
    # before them what is tested: a folder of tests bears the name of one of its packages
    path = {"PYTHONPATH": f"{TESTS.parent}:{TESTS / 'commands'}:{TESTS}"}
    argv = [sys.executable, __file__]
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


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
