"""The decision rule: paired t-tests against the baseline, Holm's correction, and what such a test could have found.

The rule is fixed before training. Each entry has a paired t-test of its final validation losses against the baseline's
with the same seeds. Holm's correction holds the chance of any false finding among all entries at the level.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy
from scipy import optimize, stats

LEVEL = 0.05
"""Chance of one false finding or more among all entries, where no entry differs."""
POWER = 0.8
"""Chance with which the smallest difference that is stated would have been found."""
Word = Literal["better", "worse", "not distinguishable", "not decided"]


@dataclass(frozen=True)
class Verdict:
    """What one test says. Differences are losses less the baseline's, in bits per token: less is better."""

    entry: str
    pairs: int
    word: Word
    difference: float | None = None
    interval: tuple[float, float] | None = None
    """Where the difference lies with 95% confidence, for this entry alone."""
    p: float | None = None
    """After Holm's correction."""


def decide(pairs: Mapping[str, Sequence[tuple[float, float]]], level: float = LEVEL) -> list[Verdict]:
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
        word: Word = "not distinguishable" if p > level else "better" if difference < 0 else "worse"
        verdicts.append(Verdict(entry, len(both), word, difference, tested[entry][1], p))
    return verdicts


def _test(pairs: Sequence[tuple[float, float]]) -> tuple[float, tuple[float, float]]:
    """Return the p-value of a paired t-test, and the 95% interval of the mean difference."""
    differences = [a - b for a, b in pairs]
    if not any(differences):  # one wiring under two names, run for run the same
        return 1.0, (0.0, 0.0)
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


def noise_floor(losses: Mapping[int, float]) -> float | None:
    """Return the standard deviation of a wiring's final losses over its seeds; None of a single seed."""
    return statistics.stdev(losses.values()) if len(losses) > 1 else None


def smallest_difference(pairs: int, entries: int, level: float = LEVEL, power: float = POWER) -> float | None:
    """Return which true difference the rule finds with this power, in standard deviations of a wiring over its seeds.

    This takes two wirings to vary alike and independently, and Holm's correction to be at its strictest.

    Args:
        pairs: seeds that an entry shares with the baseline; None comes of a single one.
        entries: compared with the baseline.
    """
    if pairs < 2 or not entries:
        return None
    critical = float(stats.t.isf(level / entries / 2, pairs - 1))

    def lacking(difference: float) -> float:
        shift = difference * math.sqrt(pairs / 2)
        return power - float(stats.nct.sf(critical, pairs - 1, shift))

    high = 1.0
    while lacking(high) > 0:
        high *= 2
    return float(optimize.brentq(lacking, 0.0, high))


def loss_at(curve: Sequence[tuple[int, float]], at: float) -> float | None:
    """Return a validation curve's loss after so many updates, between its points by a line; None before the first."""
    updates, losses = zip(*curve, strict=True) if curve else ((), ())
    return float(numpy.interp(at, updates, losses)) if updates and updates[0] <= at else None
