"""Stages of a job, each done once: what is done is not done again, what was cut off does not look done."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.recipes.evaluate import mean_of, measure
from fairseq_residuals.lab.recipes.job import Evaluation, Job
from fairseq_residuals.lab.recipes.runner import STARTED, CommandFailed, Run, Runner
from fairseq_residuals.lab.scoring import Score
from fairseq_residuals.plugin.documents import read_json
from fairseq_residuals.plugin.folders import locked
from modern_fairseq.atomic_write import atomic_write

# fairseq's own words; processes that fairseq-train starts end with a traceback
_DIVERGED = re.compile(r"^(?:FloatingPointError|fairseq-[\w-]+: error: training diverged): ([^;\n]*)", re.M)
_INCONSISTENT, _NO_NUMBER = "inconsistent between workers", re.compile(r"^rank +\d+ = (?:nan|inf)", re.M)


class Diverged(Exception):
    """Training ended because numbers overflowed; the message is fairseq's."""


@dataclass
class Stages:
    """A job that a runner is at work on."""

    job: Job
    runner: Runner
    run: Run = field(default_factory=lambda: Run("", lambda run: None))
    """Run that is told which stage begins."""
    holds: Sequence[int] = ()
    """Locks that child processes hold too."""

    @classmethod
    @contextmanager
    def of(cls, job: Job, runner: Runner, run: Run) -> Iterator[Stages]:
        """Yield the stages of a job whose folder no other process is at work in.

        Raises:
            UserError: another one is.
        """
        with locked(job.folder) as lock:
            # what is started holds the lock too: if this process is killed, no second one trains beside its training
            yield cls(job, runner, run, (lock,))

    def prepare(self) -> None:
        """Prepare the corpus.

        Raises:
            UserError: it failed.
        """
        if not is_prepared(self.job):
            corpus = self.job.corpus
            corpus.mkdir(parents=True, exist_ok=True)
            self.run.begin("preparing")
            self._command(self.job.prepare, corpus.parent / f"{corpus.name}.prepare.log")

    def has_ended(self) -> bool:
        """Return whether training came to its end, or diverged."""
        return is_trained(self.job) or _failed(self.job).is_file()

    def train(self) -> None:
        """Train, from where an earlier attempt left off.

        Raises:
            Diverged: fairseq gave up, now or in an earlier call.
            UserError: it failed in another way.
        """
        failed = _failed(self.job)
        if failed.is_file():
            raise Diverged(read_json(failed)["reason"])
        logs = self.job.logs
        if is_trained(self.job):
            self.run.begin("trained", logs[-1] if logs else None)
            return
        log = self.job.folder / f"train.{len(logs) + 1:03}.log"
        self.run.begin("training", log)
        try:
            self._command(self.job.train, log)
        except CommandFailed:
            text = log.read_text(encoding="utf-8", errors="replace")
            reasons = _DIVERGED.findall(text)
            # gradients that are numbers, but others in each worker, tell of a machine, which may be mended
            if not reasons or (_INCONSISTENT in reasons[-1] and not _NO_NUMBER.search(text)):
                raise
            write_json(failed, {"reason": reasons[-1]})
            raise Diverged(reasons[-1]) from None
        write_json(_trained(self.job), {"hours": hours(self.job)})

    def average(self) -> None:
        """Average checkpoints, where the recipe does.

        Raises:
            UserError: it failed.
        """
        if self.job.average and not self.job.checkpoint.is_file():
            self.run.begin("averaging")
            self._command(self.job.average, self.job.folder / "average.log")

    def evaluate(self, evaluation: Evaluation) -> None:
        """Run one of fairseq's tools on the trained model.

        Raises:
            UserError: it failed.
        """
        if not evaluation.log.is_file():
            self.run.begin("evaluating")
            partial = evaluation.log.with_name(f"{evaluation.log.name}.partial")
            self._command(evaluation.command, partial)
            partial.rename(evaluation.log)

    def scores(self, names: Sequence[str]) -> dict[str, list[Score]]:
        """Evaluate the trained model; return the scores of the recipe that ``names`` need, by name.

        Raises:
            UserError: an evaluation failed, or what it printed is not complete.
        """
        recipe = self.job.recipe
        scores: dict[str, list[Score]] = {}
        for name, measurements in recipe.needed(list(names)).items():
            scores[name] = []
            for measurement in measurements:
                for evaluation in self.job.evaluate(measurement):
                    self.evaluate(evaluation)
                scores[name] += measure(self.job, measurement)
        for name, parts in recipe.means.items():
            if all(part in scores for part in parts):
                scores[name] = [mean_of([scores[part] for part in parts], f"|mean:{','.join(parts)}")]
        self.run.begin("scored")
        return scores

    def _command(self, command: Sequence[str], log: Path) -> None:
        self.runner.command(command, log, self.holds)


def is_prepared(job: Job) -> bool:
    """Return whether its corpus is there."""
    return (job.corpus / "prepared.json").is_file()


def is_trained(job: Job) -> bool:
    """Return whether its training came to its end."""
    return _trained(job).is_file()


def _trained(job: Job) -> Path:
    return job.folder / "trained.json"


def _failed(job: Job) -> Path:
    return job.folder / "failed.json"


def hours(job: Job) -> float:
    """Return what the attempts to train took, from their logs: a killed one counts up to the last thing it said."""
    seconds = 0.0
    for log in job.logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            first = lines.readline()
        if not first.endswith("\n"):  # a full disk left it without its first line, and without a command
            continue
        started = datetime.fromisoformat(first.removeprefix(STARTED).strip())
        seconds += log.stat().st_mtime - started.timestamp()
    return seconds / 3600


def write_json(path: Path, content: Any) -> None:
    """Write a file, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content))
