"""A sweep: wirings, each with several learning rates and then, at the best one, with several seeds."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from fairseq.data import Dictionary, data_utils

from fairseq_residuals.lab.look.training_log import TRAIN, VALID, read_log
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.losses import final_loss, is_diverged, unigram_loss
from fairseq_residuals.lab.recipes.runner import CommandFailed, Run, Runner
from fairseq_residuals.lab.recipes.stages import Diverged, Stages, usage
from fairseq_residuals.lab.recipes.workspace import Workspace, commit
from fairseq_residuals.lab.utils.machine import processor
from fairseq_residuals.wirings.core.wiring import Wiring

BASE = "18L-18L/Post-LN"
"""The row of the small translation task whose configuration all have but for their wiring."""
Ended = Literal["trained", "diverged", "failed"]
TRAINED: Ended = "trained"
DIVERGED: Ended = "diverged"
FAILED: Ended = "failed"


@dataclass(frozen=True)
class SweepRun:
    """A wiring, as ``NAME`` or ``NAME/option=value,...``, a learning rate and a seed."""

    row: str
    lr: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row}, lr {self.lr:g}, seed {self.seed}"

    def job(self, workspace: Workspace) -> Job:
        """Return how it is trained and scored."""
        settings = workspace.settings(BASE)
        name, _, options = self.row.partition("/")
        first = first_variant(self.row)
        own = [f"model._name=transformer_{first}_wmt_en_de_18l"]
        own += [f"model.residual='{name}'"] if name != first else []
        own += [f"model.residual_args='{options}'"] if options else []
        own.append(f"optimization.lr=[{self.lr}]")
        overrides = (*settings.overrides, *own)
        label = re.sub(r"[^\w.=]+", "-", f"{self.row}-lr{self.lr:g}")
        return Job(replace(settings, overrides=overrides, label=label), workspace.task.rows[BASE].config, self.seed)


@dataclass(frozen=True)
class SweepResult:
    """What came of a run. Losses are negative log-likelihoods in bits per target token, without label smoothing."""

    row: str
    lr: float
    seed: int
    updates: int
    """That it was to make."""
    ended: Ended
    reason: str
    """Of its end, unless it was trained."""
    train_loss: float | None
    """The mean of the last twentieth of what was logged."""
    valid_loss: float | None
    """After the last update."""
    bleu: float | None
    unigram_loss: float
    cpu_seconds: float
    """Of training alone, its start included."""
    memory_mib: float
    """MiB that the process of training had at most."""
    commit: str
    torch: str
    device: str
    """The processor that was at work."""

    @property
    def run(self) -> SweepRun:
        return SweepRun(self.row, self.lr, self.seed)


def first_variant(row: str) -> str:
    """Return the variant of a row, or the first of a list of them.

    Raises:
        UserError: it is none, or an option is not valid.
    """
    name, _, options = row.partition("/")
    return Wiring.parse(name, options).parts[0].name


def unigram_loss_of(data: Path, language: str, pair: str) -> float:
    """Return the loss of validation data by a model that knows how frequent each token is in the training data."""
    words = len(Dictionary.load(str(data / f"dict.{language}.txt")))
    splits = [data_utils.load_indexed_dataset(str(data / f"{s}.{pair}.{language}")) for s in ("train", "valid")]
    train, valid = (Counter(token for line in split for token in line.tolist()) for split in splits)
    return unigram_loss(train, valid, words)


def carry_out(
    workspace: Workspace,
    runs: Sequence[SweepRun],
    runner: Runner,
    finished: Callable[[SweepResult], None],
    *,
    with_bleu: bool = True,
) -> None:
    """Do runs; ``finished`` is called with what came of each as soon as it is there.

    Args:
        with_bleu: translate the test set as well, which takes as long as some training.

    Raises:
        UserError: one could not be run, or what was trained could not be scored.
    """
    results: dict[Run, SweepResult] = {}

    def work(sweep_run: SweepRun, run: Run) -> None:
        results[run] = _result(workspace, sweep_run, runner, run, with_bleu)

    updates = workspace.sizes.updates
    begun = [Run(sweep_run.name, partial(work, sweep_run), updates) for sweep_run in runs]
    runner.run_all(begun, lambda run: finished(results.pop(run)))


def _result(workspace: Workspace, sweep_run: SweepRun, runner: Runner, run: Run, with_bleu: bool) -> SweepResult:
    """Train from the beginning, so that time and memory are those of a whole run, average, generate and score."""
    job = sweep_run.job(workspace)
    task = job.asked.task
    begun = SweepResult(
        row=sweep_run.row,
        lr=sweep_run.lr,
        seed=sweep_run.seed,
        updates=workspace.sizes.updates,
        ended=TRAINED,
        reason="",
        train_loss=None,
        valid_loss=None,
        bleu=None,
        unigram_loss=unigram_loss_of(job.data, task.target_lang, f"{task.source_lang}-{task.target_lang}"),
        cpu_seconds=0.0,
        memory_mib=0.0,
        commit=commit(),
        torch=torch.__version__,
        device=processor(),
    )
    with Stages.of(job, runner, run) as stages:
        stages.forget()
        try:
            ended = _losses(stages, _train(stages, begun))
            return _bleu(stages, ended) if with_bleu and ended.ended == TRAINED else ended
        finally:
            if job.checkpoints.exists():  # a tenth of a gigabyte for each run
                shutil.rmtree(job.checkpoints)


def _train(stages: Stages, begun: SweepResult) -> SweepResult:
    try:
        stages.train()
        used = usage(stages.job)
    except Diverged as diverged:
        used = diverged.usage
        begun = replace(begun, ended=DIVERGED, reason=f"fairseq: {diverged}")
    except CommandFailed as failure:
        used = failure.usage
        begun = replace(begun, ended=FAILED, reason=failure.tail(lines=1))
    return replace(begun, cpu_seconds=round(used.cpu_seconds, 1), memory_mib=round(used.memory_mib))


def _losses(stages: Stages, trained: SweepResult) -> SweepResult:
    if trained.ended != TRAINED:
        stages.run.begin(trained.ended)
        return trained
    (log,) = map(read_log, stages.job.logs)
    train = list(log.curve("nll_loss", TRAIN).values())
    valid = list(log.curve("nll_loss", VALID).values())[-1]
    result = replace(trained, train_loss=final_loss(train), valid_loss=valid)
    if is_diverged(valid, trained.unigram_loss):
        reason = f"validation loss {valid:.2f}, the unigram model's is {trained.unigram_loss:.2f}"
        stages.run.begin(DIVERGED)
        return replace(result, ended=DIVERGED, reason=reason)
    return result


def _bleu(stages: Stages, trained: SweepResult) -> SweepResult:
    stages.average()
    (score,) = stages.scores(["BLEU"])["BLEU"]
    assert isinstance(score.value, float)
    return replace(trained, bleu=score.value)
