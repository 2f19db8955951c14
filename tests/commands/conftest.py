"""What the tests of this folder share: data and trained models, made once for all workers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from running import Run, succeed
from tiny_jobs import JOBS, Job


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], Any]], tuple[Path, Any]]:
    """``once(name, make)``: the folder ``name`` that ``make(folder)`` has filled, and what it returned."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make_once(name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
        folder, result = shared / name, shared / f"{name}.pickle"
        with FileLock(f"{folder}.lock"):
            if not result.exists():
                folder.mkdir()
                result.write_bytes(pickle.dumps(make(folder)))
            return folder, pickle.loads(result.read_bytes())

    return make_once


@pytest.fixture(scope="session")
def data_of(once) -> Callable[[Job], Path]:
    """The data folder of a job."""
    return lambda job: once(f"data_{job.prepare.__name__}", job.prepare)[0]


@pytest.fixture(scope="session")
def trained(once, data_of) -> Callable[[Job], tuple[Path, Run]]:
    """The checkpoints and the log of a job trained without interruption."""

    def train(job: Job) -> tuple[Path, Run]:
        data = data_of(job)
        return once(f"trained_{job.name}", lambda folder: succeed("fairseq-train", *job.long_run(data, folder)))

    return train


@pytest.fixture(params=JOBS, ids=lambda job: job.name)
def job(request: pytest.FixtureRequest) -> Job:
    """Each of the three tasks."""
    return request.param
