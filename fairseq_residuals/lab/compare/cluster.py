"""Cells as jobs of a cluster, by submitit: a job whose time ends, or that gives way, is queued again and goes on."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from fairseq_residuals.lab.compare.cells import Cell, Comparison, Result, carry_out
from fairseq_residuals.lab.recipes.runner import THREADS, Run, Runner
from fairseq_residuals.wirings.core.errors import UserError

CLUSTERS = ("slurm", "local")
"""What runs jobs; ``local`` is this machine, to try it."""


class Job:
    """The training of a cell, as submitit pickles it and calls it on another machine."""

    def __call__(self, comparison: Comparison, cell: Cell) -> Result:
        """Train, from where an earlier job left off."""
        os.environ |= dict.fromkeys(THREADS, os.environ.get("SLURM_CPUS_PER_TASK", "1"))
        return carry_out(comparison, cell, Runner(), Run(cell.name, lambda run: None))

    def checkpoint(self, comparison: Comparison, cell: Cell) -> Any:
        """Return what is queued when the cluster stops the job."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, comparison, cell)


def require_submitit() -> None:
    """Check that jobs can be submitted.

    Raises:
        UserError: the package submitit is missing.
    """
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise UserError("--cluster needs the package submitit: pip install submitit") from None


def carry_out_there(
    cluster: str, comparison: Comparison, cell: Cell, runner: Runner, run: Run, seconds: float
) -> Result:
    """Train a cell as a job, and return what came of it; environment variables such as SBATCH_PARTITION are sbatch's.

    Args:
        seconds: estimate of what it takes here; the job may take three times as long, and is then queued again.

    Raises:
        UserError: the job failed, or this process is being stopped; then the job is cancelled.
    """
    import submitit

    executor = submitit.AutoExecutor(comparison.folder / "jobs", cluster=cluster)
    limit = 10 + math.ceil(3 * seconds / 60)
    executor.update_parameters(
        name="compare", timeout_min=limit, cpus_per_task=1, gpus_per_node=comparison.machine.gpus
    )
    job = executor.submit(Job(), comparison, cell)
    run.begin(f"job {job.job_id}")
    while not job.done():
        if runner.stopping:
            job.cancel(check=False)
            raise UserError("the runs are being stopped")
        time.sleep(1)
    if failure := job.exception():
        reason = str(failure).strip().splitlines()[-1]
        raise UserError(f"job {job.job_id} of {cell.name} failed: {reason}; {job.paths.stderr} has all that it said")
    result: Result = job.result()
    run.begin(result.ended)
    return result
