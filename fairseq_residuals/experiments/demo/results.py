"""What was measured: read from fairseq's logs, scored by sacreBLEU, averaged over seeds."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics import BLEU

from fairseq_residuals.experiments.demo.corpus import LANGUAGES
from fairseq_residuals.experiments.demo.runs import Run
from fairseq_residuals.experiments.losses import final_loss

_RECORD = re.compile(r"\| (train_inner|valid) \| (\{.*\})$", re.MULTILINE)
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")


@dataclass(frozen=True)
class Training:
    """What fairseq-train has logged so far. Losses are in bits (base 2) per token, as fairseq logs them."""

    parameters: int | None
    curve: list[tuple[int, float]]
    """Updates, and the training loss averaged since the point before."""
    valid: list[tuple[int, float]]
    """Updates, and the loss on the validation set."""

    @classmethod
    def read(cls, log: Path) -> Training:
        """From a log, finished or still being written; without one, nothing has been logged."""
        text = log.read_text(encoding="utf-8") if log.exists() else ""
        curve, valid = [], []
        for kind, record in _RECORD.findall(text):
            values = json.loads(record)
            if kind == "valid":
                valid.append((int(values["valid_num_updates"]), float(values["valid_loss"])))
            else:
                curve.append((int(values["num_updates"]), float(values["loss"])))
        parameters = _PARAMETERS.search(text)
        return cls(int(parameters[1].replace(",", "")) if parameters else None, curve, valid)

    @property
    def final_loss(self) -> float:
        return final_loss([loss for _, loss in self.curve])


@dataclass(frozen=True)
class Result:
    """One finished run."""

    variant: str
    seed: int
    training: Training
    cpu_seconds: float
    hypotheses: list[str]
    bleu: float
    signature: str

    @classmethod
    def of(cls, run: Run) -> Result:
        metric = BLEU()
        hypotheses = run.hypotheses.read_text(encoding="utf-8").splitlines()
        score = metric.corpus_score(hypotheses, [run.data.lines("test", LANGUAGES[1])])
        training = Training.read(run.log)
        signature = str(metric.get_signature())
        return cls(run.variant, run.seed, training, run.cpu_seconds, hypotheses, score.score, signature)


@dataclass(frozen=True)
class Summary:
    """A variant's results over its seeds."""

    variant: str
    results: Sequence[Result]

    @property
    def parameters(self) -> int | None:
        return self.results[0].training.parameters

    def mean(self, quantity: Callable[[Result], float]) -> float:
        return statistics.fmean(map(quantity, self.results))

    def show(self, quantity: Callable[[Result], float], digits: int) -> str:
        """The mean, and with several seeds the sample standard deviation: "61.2 ± 0.8"."""
        mean = f"{self.mean(quantity):.{digits}f}"
        if len(self.results) == 1:
            return mean
        return f"{mean} ± {statistics.stdev(map(quantity, self.results)):.{digits}f}"


def summarize(results: Sequence[Result]) -> list[Summary]:
    """One summary per variant, in the order in which they come."""
    names = dict.fromkeys(result.variant for result in results)
    return [Summary(name, [result for result in results if result.variant == name]) for name in names]


def train_loss(result: Result) -> float:
    return result.training.final_loss


def valid_loss(result: Result) -> float:
    return result.training.valid[-1][1]


def bleu(result: Result) -> float:
    return result.bleu


def cpu_seconds(result: Result) -> float:
    return result.cpu_seconds
