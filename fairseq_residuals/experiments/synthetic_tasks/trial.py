"""``python -m ...synthetic_tasks.trial PLAN TRIAL FILE``: one run of the comparison of variants, a process of its
own, which leaves what came of it in FILE."""

from __future__ import annotations

import json
import re
import resource
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import log2
from pathlib import Path
from typing import Literal

import torch
from fairseq.data import Dictionary, data_utils

from fairseq_residuals.analysis.speed import processor
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.wiring import Wiring
from fairseq_residuals.experiments import command_steps
from fairseq_residuals.experiments.evaluate import measure
from fairseq_residuals.experiments.job import Job
from fairseq_residuals.experiments.losses import final_loss
from fairseq_residuals.experiments.reproduce import commit
from fairseq_residuals.experiments.synthetic_tasks.plan import Plan
from fairseq_residuals.experiments.training_log import TRAIN, VALID, read_log
from fairseq_residuals.utils.atomic_write import atomic_write

BASE = "18L-18L/Post-LN"
"""The row of the small translation task whose configuration all have but for their wiring."""
Ended = Literal["trained", "diverged", "failed"]
TRAINED: Ended = "trained"
DIVERGED: Ended = "diverged"
FAILED: Ended = "failed"
MIB = 2**20


@dataclass(frozen=True)
class Trial:
    """A wiring, as ``NAME`` or ``NAME/option=value,...``, a learning rate and a seed."""

    row: str
    lr: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.row}, lr {self.lr:g}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        return re.sub(r"[^\w.=]+", "-", self.name)

    def job(self, plan: Plan) -> Job:
        """How it is trained and scored."""
        settings = plan.settings(BASE)
        name, _, options = self.row.partition("/")
        first = first_variant(self.row)
        own = [f"model._name=transformer_{first}_wmt_en_de_18l"]
        own += [f"model.residual='{name}'"] if name != first else []
        own += [f"model.residual_args='{options}'"] if options else []
        own.append(f"optimization.lr=[{self.lr}]")
        overrides = (*settings.overrides, *own)
        return Job(replace(settings, overrides=overrides), plan.task.rows[BASE].config, self.seed)


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. Losses are negative log-likelihoods in bits per target token, without label smoothing."""

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
    def trial(self) -> Trial:
        return Trial(self.row, self.lr, self.seed)


def first_variant(row: str) -> str:
    """The variant of a row, or the first of a list of them.

    Raises:
        UserError: it is none, or an option is not valid.
    """
    name, _, options = row.partition("/")
    return Wiring.parse(name, options).parts[0].name


def unigram_loss(train: Iterable[int], valid: Iterable[int], words: int) -> float:
    """Bits per token of ``valid`` by a model that knows how frequent each of ``words`` tokens is in ``train``, where
    each counts once more, so that none is impossible."""
    counts = Counter(train)
    total = counts.total() + words
    return statistics.fmean(-log2((counts[token] + 1) / total) for token in valid)


def unigram_loss_of(data: Path, language: str, pair: str) -> float:
    """The same of a binarized corpus."""
    dictionary = Dictionary.load(str(data / f"dict.{language}.txt"))
    splits = [data_utils.load_indexed_dataset(str(data / f"{s}.{pair}.{language}")) for s in ("train", "valid")]
    train, valid = ((token for line in split for token in line.tolist()) for split in splits)
    return unigram_loss(train, valid, len(dictionary))


def run(plan: Plan, trial: Trial) -> Outcome:
    """Trains, averages, generates and scores, from the beginning: what a killed attempt left is thrown away, so that
    time and memory are those of a whole run.

    Raises:
        UserError: another process is at it, or what was trained could not be scored.
    """
    job = trial.job(plan)
    with command_steps.alone_in(job.folder):
        for path in job.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        task = job.asked.task
        begun = Outcome(
            row=trial.row,
            lr=trial.lr,
            seed=trial.seed,
            updates=plan.sizes.updates,
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
        try:
            return _score(job, _train(job, begun))
        finally:
            if job.checkpoints.exists():  # a tenth of a gigabyte for each run
                shutil.rmtree(job.checkpoints)


def _train(job: Job, begun: Outcome) -> Outcome:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        command_steps.train(job)
    except command_steps.Diverged as reason:
        begun = replace(begun, ended=DIVERGED, reason=f"fairseq: {reason}")
    except UserError:
        begun = replace(begun, ended=FAILED, reason=_last_words(command_steps.logs_of(job)[-1]))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    unit = 1 if sys.platform == "darwin" else 1024
    return replace(begun, cpu_seconds=round(seconds, 1), memory_mib=round(used.ru_maxrss * unit / MIB))


def _last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]


def _score(job: Job, trained: Outcome) -> Outcome:
    if trained.ended != TRAINED:
        return trained
    (log,) = map(read_log, command_steps.logs_of(job))
    train = list(log.curve("nll_loss", TRAIN).values())
    valid = list(log.curve("nll_loss", VALID).values())[-1]
    found = replace(trained, train_loss=final_loss(train), valid_loss=valid)
    if not valid <= trained.unigram_loss:  # nan too
        reason = f"validation loss {valid:.2f}, the unigram model's is {trained.unigram_loss:.2f}"
        return replace(found, ended=DIVERGED, reason=reason)
    command_steps.average(job)
    ((measurement,),) = job.recipe.needed(["BLEU"]).values()
    for evaluation in job.evaluate(measurement):
        command_steps.evaluate(evaluation)
    (score,) = measure(job, measurement)
    assert isinstance(score.value, float)
    return replace(found, bleu=score.value)


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, also of a trial that diverged or failed."""
    plan, trial, file = Plan.from_json(arguments[0]), Trial(**json.loads(arguments[1])), Path(arguments[2])
    try:
        outcome = run(plan, trial)
    except UserError as error:
        print(f"small: error: {error}", file=sys.stderr)
        return 1
    with atomic_write(file) as partial:
        partial.write_text(json.dumps(asdict(outcome)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
