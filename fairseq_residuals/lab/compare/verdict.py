"""The decision rule: paired t-tests against the baseline, Holm's correction, and what such a test could have found.

The rule is fixed before training. Each entry has a paired t-test of its final validation losses against the baseline's
with the same seeds. Holm's correction holds the chance of any false finding among all entries at the level.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy
from scipy import special, stats

from fairseq_residuals.lab.compare.cells import Result
from fairseq_residuals.lab.compare.checks import Start
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.schedule import Plan, at_best_rate, rate_losses

LEVEL = 0.05
"""Chance of one false finding or more among all entries, where no entry differs."""
POWER = 0.8
"""Chance with which the smallest difference that is stated would have been found."""
ROUNDING = 0.001 / math.sqrt(6)
"""Standard deviation of a difference of two losses that fairseq has rounded to three places."""
SAME_SPEED = 0.05
"""Share by which timed passes differ by chance."""
Word = Literal["better", "worse", "not distinguishable", "not decided"]


@dataclass(frozen=True)
class Verdict:
    """Verdict of one test. Differences are losses less the baseline's, in bits per token: less is better."""

    entry: str
    pairs: int
    word: Word
    difference: float | None = None
    interval: tuple[float, float] | None = None
    """The interval of the difference with 95% confidence, for this entry alone."""
    p: float | None = None
    """The probability after Holm's correction."""


def decide(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> list[Verdict]:
    """Return a verdict on every entry.

    Args:
        pairs: by entry, its loss and the baseline's of each seed that both have.
    """
    tested = {entry: _test(both) for entry, both in pairs.items() if len(both) > 1}
    corrected = dict(zip(tested, holm([p for p, _ in tested.values()]), strict=True))
    verdicts = []
    for entry, both in pairs.items():
        difference = statistics.fmean(a - b for a, b in both) if both else None
        if entry not in tested or difference is None:
            verdicts.append(Verdict(entry, len(both), "not decided", difference))
            continue
        p = corrected[entry]
        word: Word = "not distinguishable" if p > LEVEL else "better" if difference < 0 else "worse"
        verdicts.append(Verdict(entry, len(both), word, difference, tested[entry][1], p))
    return verdicts


def _test(pairs: Sequence[tuple[float, float]]) -> tuple[float, tuple[float, float]]:
    """Return the p-value of a paired t-test, and the 95% interval of the mean difference."""
    differences = [a - b for a, b in pairs]
    if not any(differences):  # one wiring under two names, run for run the same
        return 1.0, (0.0, 0.0)
    if statistics.stdev(differences) < ROUNDING:  # what is equal in three places differs in the fourth
        t = stats.t(len(differences) - 1, statistics.fmean(differences), ROUNDING / math.sqrt(len(differences)))
        low, high = t.interval(0.95)
        return float(2 * min(t.cdf(0.0), t.sf(0.0))), (float(low), float(high))
    found = stats.ttest_1samp(differences, 0.0)
    low, high = found.confidence_interval(0.95)
    return float(found.pvalue), (float(low), float(high))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down procedure, in the order in which they came."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def smallest_difference(pairs: int, entries: int) -> float | None:
    """Return which true difference the rule finds with :data:`POWER`, in standard deviations of a wiring over seeds.

    This takes two wirings to vary alike and independently, and Holm's correction to be at its strictest.

    Args:
        pairs: seeds that an entry shares with the baseline; None comes of a single one.
        entries: compared with the baseline.
    """
    if pairs < 2 or not entries:
        return None
    critical = stats.t.isf(LEVEL / entries / 2, pairs - 1)
    shift = float(special.nctdtrinc(pairs - 1, 1 - POWER, critical))  # of Student's noncentral distribution
    return shift / math.sqrt(pairs / 2)


def loss_at(curve: Sequence[tuple[int, float]], at: float) -> float | None:
    """Return a validation curve's loss after so many updates, by a line between its points; None without one."""
    updates, losses = zip(*curve, strict=True) if curve else ((), ())
    loss = float(numpy.interp(at, updates, losses)) if updates and updates[0] <= at else math.nan
    return loss if math.isfinite(loss) else None


@dataclass
class Findings:
    """Findings from the results of a comparison; losses in bits per token."""

    plan: Plan
    results: Sequence[Result]
    starts: Mapping[str, Start]
    chosen: dict[Entry, list[Result]] = field(init=False)
    """The results of each entry at its best rate."""
    at_updates: list[Verdict] = field(init=False)
    at_seconds: list[Verdict] = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = {entry: at_best_rate(entry, self.results, self.plan) for entry in self.plan.entries}
        others = self.plan.entries[1:]
        self.at_updates = decide({entry.name: self._pairs(entry) for entry in others})
        self.at_seconds = decide({entry.name: self._pairs(entry, self.cost(entry)) for entry in others})

    def losses(self, entry: Entry, share: float = 1.0) -> dict[int, float]:
        """Return losses by seed, of the runs that have one, after a share of their updates."""
        found = [o for o in self.chosen[entry] if math.isfinite(o.loss)]
        losses = {o.seed: o.loss if share == 1.0 else loss_at(o.points, share * o.updates) for o in found}
        return {seed: loss for seed, loss in losses.items() if loss is not None}

    def cost(self, entry: Entry) -> float:
        """Return the seconds of a pass as a multiple of the baseline's; 1 where they differ by less than noise."""
        ratio = self.starts[entry.name].seconds / self.starts[self.plan.baseline.name].seconds
        return 1.0 if abs(ratio - 1) < SAME_SPEED else ratio

    def _pairs(self, entry: Entry, cost: float = 1.0) -> list[tuple[float, float]]:
        """Return losses of an entry and of the baseline with the same seeds, in the time that the faster one takes."""
        own, reference = self.losses(entry, min(1.0, 1 / cost)), self.losses(self.plan.baseline, min(1.0, cost))
        return [(own[seed], reference[seed]) for seed in sorted(own.keys() & reference.keys())]

    def sentence(self, verdict: Verdict) -> str:
        """Return what a verdict at equal updates says, in words."""
        (entry,) = (e for e in self.plan.entries if e.name == verdict.entry)
        grid = rate_losses(entry, self.results)
        if not grid:
            return f"{entry.name}: not run."
        if not self.chosen[entry]:
            how = {o.ended for o in self.results if o.entry == entry.name}
            return f"{entry.name}: {' or '.join(sorted(how))} at every rate from {min(grid):g} to {max(grid):g}."
        ended = [o.ended for o in self.chosen[entry]]
        failed = "" if set(ended) == {"learned"} else f" Seeds that learned: {ended.count('learned')} of {len(ended)}."
        text = f"{entry.name}: {verdict.word}"
        if verdict.difference is None or verdict.interval is None or verdict.p is None:
            return f"{text}: the test needs two seeds of both.{failed}"
        (low, high), than = verdict.interval, self.plan.baseline.name
        text += f" from {than}" if verdict.word == "not distinguishable" else f" than {than}"
        text += f": {verdict.difference:+.3f} bits per token (95%: {low:+.3f} to {high:+.3f}; p = {verdict.p:.2g}, "
        return f"{text}{verdict.pairs} seeds).{failed}"
