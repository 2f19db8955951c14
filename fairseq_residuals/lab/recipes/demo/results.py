"""What was measured: read from fairseq's logs, averaged over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairseq_residuals.lab.look.training_log import TRAIN, VALID, read_log
from fairseq_residuals.lab.recipes.evaluate import measure
from fairseq_residuals.lab.recipes.job import Job
from fairseq_residuals.lab.recipes.losses import final_loss
from fairseq_residuals.lab.recipes.stages import usage
from fairseq_residuals.lab.utils.tables import mean_and_spread
from fairseq_residuals.plugin.scoring.text import read_generation
from fairseq_residuals.wirings.core.errors import UserError


@dataclass(frozen=True)
class DemoResult:
    """What came of one run. Losses are in bits (base 2) per token, as fairseq logs them."""

    variant: str
    seed: int
    parameters: int
    curve: list[tuple[int, float]]
    """Updates, and the training loss averaged since the point before."""
    valid_curve: list[tuple[int, float]]
    """Updates, and the loss on the validation set."""
    cpu_seconds: float
    """Of training."""
    hypotheses: list[str]
    bleu: float
    signature: str

    @classmethod
    def of(cls, job: Job, variant: str) -> DemoResult:
        """Return the result of a run that has ended.

        Raises:
            UserError: its logs are not complete.
        """
        log = read_log(job.logs[-1])
        ((measurement,),) = job.recipe.needed(["BLEU"]).values()
        (score,) = measure(job, measurement)
        (evaluation,) = job.evaluate(measurement)
        if log.parameters is None or not isinstance(score.value, float):
            raise UserError(f"{log.path} does not say how many parameters the model has")
        return cls(
            variant,
            job.seed,
            log.parameters,
            list(log.curve("loss", TRAIN).items()),
            list(log.curve("loss", VALID).items()),
            usage(job).cpu_seconds,
            read_generation(evaluation.log).detokenized,
            score.value,
            score.signature,
        )

    @property
    def train_loss(self) -> float:
        """Where training ended."""
        return final_loss([loss for _, loss in self.curve])

    @property
    def valid_loss(self) -> float:
        """After the last update."""
        return self.valid_curve[-1][1]


@dataclass(frozen=True)
class Summary:
    """A variant's results over its seeds."""

    variant: str
    results: Sequence[DemoResult]

    def mean(self, quantity: Callable[[DemoResult], float]) -> float:
        return statistics.fmean(map(quantity, self.results))

    def show(self, quantity: Callable[[DemoResult], float], digits: int) -> str | None:
        """Return the mean, and with several seeds the sample standard deviation: "61.2 ± 0.8"."""
        return mean_and_spread([quantity(result) for result in self.results], digits)


def summarize(results: Sequence[DemoResult]) -> list[Summary]:
    """Return one summary per variant, in the order in which they come."""
    names = dict.fromkeys(result.variant for result in results)
    return [Summary(name, [result for result in results if result.variant == name]) for name in names]
