"""What the results of a comparison say, at equal updates and at equal seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairseq_residuals.lab.compare.cells import Result
from fairseq_residuals.lab.compare.checks import Start
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.schedule import Plan, at_best_rate, rate_losses
from fairseq_residuals.lab.compare.verdict import Verdict, decide, loss_at

SAME_SPEED = 0.05
"""Share by which timed passes differ by chance."""


@dataclass
class Findings:
    """What the results of a comparison say; losses in bits per token."""

    plan: Plan
    results: Sequence[Result]
    starts: Mapping[str, Start]
    chosen: dict[Entry, list[Result]] = field(init=False)
    """By entry, the results at its best rate."""
    at_updates: list[Verdict] = field(init=False)
    at_seconds: list[Verdict] = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = {entry: at_best_rate(entry, self.results) for entry in self.plan.entries}
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
            return f"{entry.name}: diverged at every rate from {min(grid):g} to {max(grid):g}."
        ended = [o.ended for o in self.chosen[entry]]
        failed = "" if set(ended) == {"learned"} else f" Of {len(ended)} seeds {ended.count('learned')} learned."
        text = f"{entry.name}: {verdict.word}"
        if verdict.difference is None or verdict.interval is None or verdict.p is None:
            return f"{text}: the test needs two seeds of both.{failed}"
        (low, high), than = verdict.interval, self.plan.baseline.name
        text += f" from {than}" if verdict.word == "not distinguishable" else f" than {than}"
        text += f": {verdict.difference:+.3f} bits per token (95%: {low:+.3f} to {high:+.3f}; p = {verdict.p:.2g}, "
        return f"{text}{verdict.pairs} seeds).{failed}"
