"""Cells: one wiring, one rate, one seed, trained by fairseq in a process of its own, and the line of ``runs.csv``."""

from __future__ import annotations

import csv
import io
import math
import os
import shlex
import shutil
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import torch

from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.tasks import Rung, Task, data_digest, unigram_loss_of
from fairseq_residuals.lab.look.diagnose import DID_NOT_LEARN_ABOVE
from fairseq_residuals.lab.look.training_log import TRAIN, VALID, end_of, read_log
from fairseq_residuals.lab.recipes.compose import key_of, training_hash, whole_hash
from fairseq_residuals.lab.recipes.job import PLUGIN, Job, Precision, Settings
from fairseq_residuals.lab.recipes.runner import THREADS, CommandFailed, Run, Runner
from fairseq_residuals.lab.recipes.stages import Diverged, Stages, hours
from fairseq_residuals.lab.utils.checkout import CONFIGS, commit
from fairseq_residuals.lab.utils.machine import processor
from fairseq_residuals.lab.utils.tables import csv_text
from fairseq_residuals.plugin.documents import read_text
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write

LOGGED, VALIDATED = 40, 8
"""Points of a curve of training losses, and of validation losses."""
WIDE = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
"""Sizes of a stack that the command sets."""
MOST_IN_A_PASS = 16_384
"""Tokens of one pass; larger updates are several."""
CLUSTERS = ("slurm", "local")
"""Systems that run jobs; ``local`` is this machine, to try it."""
Ended = Literal["learned", "did not learn", "diverged", "failed"]


@dataclass(frozen=True)
class Cell:
    """One training."""

    entry: Entry
    lr: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.entry.name}, lr {self.lr:g}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, float, int]:
        return self.entry.name, self.lr, self.seed


@dataclass(frozen=True)
class Result:
    """Result of a cell, a line of ``runs.csv``. Losses are in bits per target token."""

    entry: str
    lr: float
    seed: int
    ended: Ended
    reason: str
    """Reason why the training ended so, where it did not learn."""
    valid_loss: float | None
    """Loss after the last update."""
    train_loss: float | None
    """Mean of the last twentieth of what was logged."""
    score: float | None
    """BLEU or perplexity on the test set, where asked for."""
    signature: str
    unigram_loss: float
    parameters: int | None
    updates: int
    hours: float
    """Time of all attempts, validations included."""
    curve: str
    """Validation losses, as ``UPDATE:LOSS UPDATE:LOSS ...``."""
    settings: str
    """Digest of all that the entries share: task, size, updates, tokens, schedule."""
    data: str
    """Digest of the binarized data."""
    command: str
    commit: str
    torch: str
    device: str

    @property
    def key(self) -> tuple[str, float, int]:
        return self.entry, self.lr, self.seed

    @property
    def loss(self) -> float:
        """Validation loss for choosing and testing; infinite where there is none."""
        return math.inf if self.ended in ("diverged", "failed") or self.valid_loss is None else self.valid_loss

    @property
    def points(self) -> list[tuple[int, float]]:
        pairs = (point.split(":") for point in self.curve.split())
        return [(int(update), float(loss)) for update, loss in pairs]


HEADER = tuple(field.name for field in fields(Result))
FORMER = ("cpu_seconds", "memory_mib")
"""Columns that earlier versions wrote."""


@dataclass(frozen=True)
class Comparison:
    """Settings that all cells of one call share."""

    task: Task
    rung: Rung
    depth: int
    folder: Path
    """Folder of runs.csv, the report and the runs."""
    data: Path
    """Folder of the task's corpus, as ``Settings.data``."""
    gpus: int
    precision: Precision | None = None
    user_dir: Path | None = None
    """Package of the user's own wirings."""
    overrides: tuple[str, ...] = ()
    with_score: bool = False
    keep_checkpoints: bool = False

    def job(self, cell: Cell) -> Job:
        """Return how a cell is trained and scored."""
        rung = self.rung
        wide = dict(zip(WIDE, (rung.dim, rung.ffn, rung.heads, self.depth), strict=True))
        stacks = ("decoder",) if self.task.is_language_model else ("encoder", "decoder")
        passes = math.ceil(rung.tokens / MOST_IN_A_PASS)
        validated = math.ceil(rung.updates / VALIDATED)
        overrides = (
            *(f"model.{stack}_{key}={value}" for stack in stacks for key, value in wide.items()),
            f"dataset.max_tokens={rung.tokens // passes}",
            f"optimization.update_freq=[{passes}]",
            f"optimization.max_update={rung.updates}",
            f"lr_scheduler.warmup_updates={min(self.task.warmup, rung.updates // 6)}",
            f"common.log_interval={math.ceil(rung.updates / LOGGED)}",
            f"dataset.validate_interval_updates={validated}",
            f"checkpoint.save_interval_updates={validated}",
            *self.task.overrides,
            *self.overrides,
            *cell.entry.overrides,
            f"optimization.lr=[{cell.lr}]",
        )
        settings = Settings(
            CONFIGS,
            self.data,
            self.folder / "runs",
            self.gpus,
            self.precision,
            overrides=overrides,
            label=f"{cell.entry.label}-lr{cell.lr:g}",
            user_dir=self.user_dir or PLUGIN,
        )
        return Job(settings, self.task.config, cell.seed)

    @cached_property
    def any_job(self) -> Job:
        """Job of a wiring that every task has, for what all jobs share."""
        return self.job(Cell(Entry("", "pre_ln", ""), 1.0, 1))

    @property
    def trained_in(self) -> str:
        """Precision of the trainings: fp32, fp16 or bf16."""
        common = self.any_job.config.common
        return "bf16" if common.bf16 else "fp16" if common.fp16 else "fp32"

    @property
    def stated(self) -> set[str]:
        """Keys of settings that the report states."""
        sizes = (f"model.{stack}_{key}" for stack in ("encoder", "decoder") for key in WIDE)
        steps = ("dataset.max_tokens", "optimization.update_freq", "optimization.max_update")
        rates = ("optimization.lr", "lr_scheduler.lr", "optimizer.lr")
        common = ("common.seed", "common.bf16", "common.fp16", "common.amp")
        return {*sizes, *steps, *rates, *common, "model.residual", "model.residual_args"}

    @cached_property
    def shared(self) -> str:
        """Digest of all that its entries share, seeds and rates left out; how they are scored, where that is said."""
        scored = any(key_of(text).startswith("recipe.") for text in self.overrides)
        return (whole_hash if scored else training_hash)(self.any_job.asked)

    @property
    def data_bin(self) -> Path:
        return self.any_job.data

    @cached_property
    def data_digest(self) -> str:
        return data_digest(self.data_bin)

    @cached_property
    def unigram_loss(self) -> float:
        return unigram_loss_of(self.data_bin, self.any_job.asked.task.get("target_lang") or "")

    @property
    def runs_csv(self) -> Path:
        return self.folder / "runs.csv"


def carry_out(comparison: Comparison, cell: Cell, runner: Runner, run: Run) -> Result:
    """Train a cell, from where an earlier attempt left off, and return what came of it.

    Raises:
        UserError: it was stopped, or its score cannot be computed.
    """
    job, updates = comparison.job(cell), comparison.rung.updates
    ended: Ended = "learned"
    reason, train, valid, parameters = "", {}, {}, None
    score, signature = None, ""
    with Stages.of(job, runner, run) as stages:
        try:
            stages.train()
        except Diverged as diverged:
            ended, reason = "diverged", f"fairseq: {diverged}"
        except CommandFailed as failure:
            if runner.stopping:
                raise
            ended, reason = "failed", failure.tail(lines=1)
        if ended != "failed":
            log = read_log(*job.logs)
            # beside a loss that smooths labels, fairseq logs the one that compares with the unigram loss
            loss = "nll_loss" if log.values("nll_loss", VALID) else "loss"
            train, valid, parameters = log.values(loss, TRAIN), log.values(loss, VALID), log.parameters
        last = valid.get(updates)
        if ended == "learned" and last is None:  # as by an override such as checkpoint.patience
            ended, reason = "failed", f"fairseq ended or validated no more before update {updates}"
        elif ended == "learned" and last is not None and not math.isfinite(last):
            ended, reason, last = "diverged", "the last validation loss is no number", None
        if comparison.with_score and ended == "learned":
            ((scored,),) = stages.scores(list(job.recipe.measurements)).values()
            assert isinstance(scored.value, float)
            score, signature = scored.value, scored.signature
        # a failed run goes on from them
        if ended != "failed" and not comparison.keep_checkpoints and job.checkpoints.exists():
            shutil.rmtree(job.checkpoints)
    result = Result(
        entry=cell.entry.name,
        lr=cell.lr,
        seed=cell.seed,
        ended=ended,
        reason=reason,
        valid_loss=last,
        train_loss=end_of(train) if train else None,
        score=score,
        signature=signature,
        unigram_loss=comparison.unigram_loss,
        parameters=parameters,
        updates=updates,
        hours=round(hours(job), 4),
        curve=" ".join(f"{update}:{loss:g}" for update, loss in valid.items()),
        settings=comparison.shared,
        data=comparison.data_digest,
        command=_anywhere(comparison, job),
        commit=commit(),
        torch=torch.__version__,
        device=torch.cuda.get_device_name() if comparison.gpus else processor(),
    )
    result = judged(result)
    run.begin(result.ended)
    return result


def judged(result: Result) -> Result:
    """Return a result that says whether the model learned, by one rule for all lines of ``runs.csv``."""
    if result.ended not in ("learned", "did not learn") or result.valid_loss is None:
        return result
    if result.valid_loss <= DID_NOT_LEARN_ABOVE * result.unigram_loss:
        return replace(result, ended="learned", reason="")
    reason = f"validation loss {result.valid_loss:.2f}, the unigram loss is {result.unigram_loss:.2f}"
    return replace(result, ended="did not learn", reason=reason)


class ClusterJob:
    """The training of a cell, as submitit pickles it and calls it on another machine."""

    def __call__(self, comparison: Comparison, cell: Cell) -> Result:
        """Train, from where an earlier job left off."""
        os.environ |= dict.fromkeys(THREADS, os.environ.get("SLURM_CPUS_PER_TASK", "1"))
        return carry_out(comparison, cell, Runner(), Run(cell.name, lambda run: None))

    def checkpoint(self, comparison: Comparison, cell: Cell) -> Any:
        """Return what is queued when the cluster stops the job."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, comparison, cell)


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
    executor.update_parameters(name="compare", timeout_min=limit, cpus_per_task=1, gpus_per_node=comparison.gpus)
    job = executor.submit(ClusterJob(), comparison, cell)
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


def _anywhere(comparison: Comparison, job: Job) -> str:
    """Return the command that trains a cell, with names in place of folders of this machine."""
    names = {comparison.folder.parent: "$OUT", CONFIGS: "configs", PLUGIN: "$PLUGIN"}
    command = shlex.join(job.train)
    for folder, name in names.items():
        command = command.replace(str(folder), name)
    return command


def read_results(path: Path) -> list[Result]:
    """Return the results in the order of writing; none if there is no file.

    Raises:
        UserError: it is no file of results.
    """
    if not path.exists():
        return []
    lines = csv.DictReader(io.StringIO(read_text(path), newline=""))
    types = get_type_hints(Result)
    results = []
    try:
        if tuple(name for name in lines.fieldnames or () if name not in FORMER) != HEADER:
            raise UserError(f"{path} is no file of runs: its first line has to be {','.join(HEADER)}")
        for line in lines:
            results.append(judged(Result(**{name: _value(types[name], line[name]) for name in HEADER})))
            results[-1].points  # noqa: B018  a curve that is none is refused here
    except (csv.Error, ValueError, TypeError) as error:
        raise UserError(f"{path}, line {lines.line_num} is no result of a run: {error}") from None
    return results


def _value(kind: object, text: str) -> Any:
    if kind is Ended and text not in get_args(Ended):
        raise ValueError(f"ended is {text!r}")
    if kind in (str, Ended):
        return text
    if text == "":
        return None
    return int(text) if kind in (int, int | None) else float(text)


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Write all results; readers see the old file or the new one."""
    with atomic_write(path) as new:
        new.write_text(csv_text(HEADER, map(astuple, results)), encoding="utf-8", newline="")
