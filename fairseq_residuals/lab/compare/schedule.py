"""Order of the cells: rates with the first seed until the best has a worse neighbour on each side, then seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairseq_residuals.lab.compare.cells import Cell, Result
from fairseq_residuals.lab.compare.entries import Entry

FIRST_SEED = 1
MOST_RATES = 9
"""Rates at which the grid of an entry no longer grows."""


@dataclass(frozen=True)
class Plan:
    """Rates and seeds that there are to be."""

    entries: Sequence[Entry]
    """Entries, the baseline first."""
    rates: tuple[float, ...]
    """Rates that every entry begins with."""
    grows: bool
    """Whether further rates follow where the best is at an edge."""
    seeds: int
    baseline_seeds: int

    @property
    def baseline(self) -> Entry:
        return self.entries[0]

    def seeds_of(self, entry: Entry) -> int:
        return max(self.seeds, self.baseline_seeds) if entry == self.baseline else self.seeds


def rate_losses(entry: Entry, results: Sequence[Result]) -> dict[float, float]:
    """Return the loss at each rate with the first seed, infinite where it diverged."""
    return {o.lr: o.loss for o in results if (o.entry, o.seed) == (entry.name, FIRST_SEED)}


def best_rate(losses: Mapping[float, float]) -> float | None:
    """Return the rate with the least loss; None where all diverged."""
    finite = {lr: loss for lr, loss in losses.items() if math.isfinite(loss)}
    return min(finite, key=lambda lr: finite[lr]) if finite else None


def is_edge(losses: Mapping[float, float]) -> bool:
    """Return whether the best rate is the lowest or the highest that was tried: a better one may lie beyond."""
    return best_rate(losses) in (min(losses), max(losses))


def next_rates(losses: Mapping[float, float], plan: Plan) -> list[float]:
    """Return the rates that are to be tried now; none if the best one is known to have worse neighbours."""
    if missing := [lr for lr in plan.rates if lr not in losses]:
        return missing
    if not plan.grows or len(losses) >= MOST_RATES:
        return []
    best = best_rate(losses)
    if best is None:
        return [min(losses) / 2]
    # an earlier call may have tried rates further away
    return [lr for lr in (best / 2, best * 2) if not any(math.isclose(lr, tried) for tried in losses)]


def next_cells(plan: Plan, results: Sequence[Result]) -> list[Cell]:
    """Return the cells that can be trained now, in order of worth; none if all is done."""
    rates = {entry: rate_losses(entry, results) for entry in plan.entries}
    if grid := [Cell(entry, lr, FIRST_SEED) for entry in plan.entries for lr in next_rates(rates[entry], plan)]:
        return grid
    done = {result.key for result in results}
    cells = []
    for seed in range(FIRST_SEED + 1, FIRST_SEED + max(plan.seeds_of(entry) for entry in plan.entries)):
        for entry in plan.entries:
            lr = best_rate(rates[entry])
            if lr is not None and seed < FIRST_SEED + plan.seeds_of(entry) and (entry.name, lr, seed) not in done:
                cells.append(Cell(entry, lr, seed))
    return cells


def at_best_rate(entry: Entry, results: Sequence[Result]) -> list[Result]:
    """Return the results at an entry's best rate, by seed."""
    best = best_rate(rate_losses(entry, results))
    return sorted((o for o in results if (o.entry, o.lr) == (entry.name, best)), key=lambda o: o.seed)
