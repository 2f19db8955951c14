"""Order of the cells: rates until the best has a worse neighbour on each side, then seeds, then rates that are close.

One seed alone would often choose another rate for each of two equal wirings, and further seeds would tell these apart.
So the best rate has the least mean of its seeds, and a rate within a standard error of it gets as many. By simulation
(tests/compare/test_schedule.py), equal wirings are then told apart about as often as the level of the tests says.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairseq_residuals.lab.compare.cells import Cell, Result
from fairseq_residuals.lab.compare.entries import Entry

FIRST_SEED = 1
MOST_RATES = 9
"""Rates at which the grid of an entry no longer grows."""
Grid = Mapping[float, Sequence[float]]
"""Losses of seeds by rate."""


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

    @property
    def adds_seeds(self) -> bool:
        """Whether rates that are close to the best get seeds as well."""
        return self.seeds > 1 and (self.grows or len(self.rates) > 1)

    def seeds_of(self, entry: Entry) -> int:
        return max(self.seeds, self.baseline_seeds) if entry == self.baseline else self.seeds


def rate_losses(entry: Entry, results: Sequence[Result]) -> dict[float, list[float]]:
    """Return the losses of the seeds at each rate, infinite where one diverged."""
    losses: dict[float, list[float]] = {}
    for result in results:
        if result.entry == entry.name:
            losses.setdefault(result.lr, []).append(result.loss)
    return losses


def mean_loss(losses: Sequence[float]) -> tuple[float, float]:
    """Return what rates are ordered by: the share of seeds that diverged, and the mean of the others."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return 1 - len(finite) / len(losses), statistics.fmean(finite) if finite else math.inf


def best_rate(losses: Grid) -> float | None:
    """Return the rate with the least mean; None where all diverged."""
    best = min(losses, key=lambda lr: mean_loss(losses[lr]), default=None)
    return None if best is None or mean_loss(losses[best])[0] == 1 else best


def close_rates(losses: Grid) -> list[float]:
    """Return the rates whose mean is less than a standard error above that of the best one."""
    several = [found for seeds in losses.values() if len(found := [*filter(math.isfinite, seeds)]) > 1]
    best = best_rate(losses)
    if best is None or not several:
        return []
    squares = sum((len(seeds) - 1) * statistics.variance(seeds) for seeds in several)
    deviation = math.sqrt(squares / sum(len(seeds) - 1 for seeds in several))
    diverged, least = mean_loss(losses[best])

    def is_close(lr: float) -> bool:
        share, mean = mean_loss(losses[lr])
        error = deviation * math.sqrt(1 / len(losses[lr]) + 1 / len(losses[best]))
        return lr != best and share == diverged and mean - least < error

    return [lr for lr in losses if is_close(lr)]


def reported_rate(losses: Grid, enough: int) -> float | None:
    """Return the best of the rates with ``enough`` seeds; of those with most, as before its end none may have these."""
    most = min(enough, max(map(len, losses.values()), default=0))
    return best_rate({lr: seeds for lr, seeds in losses.items() if len(seeds) >= most})


def is_edge(lr: float, losses: Grid) -> bool:
    """Return whether a rate is the lowest or the highest that was tried: a better one may lie beyond."""
    return lr in (min(losses), max(losses))


def next_rates(losses: Grid, plan: Plan) -> list[float]:
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
    cells = [cell for entry in plan.entries for cell in cells_of(entry, plan, results)]
    return sorted(cells, key=lambda cell: cell.seed)


def cells_of(entry: Entry, plan: Plan, results: Sequence[Result]) -> list[Cell]:
    """Return the cells that an entry needs now: rates, or else seeds at the best, or else at those that are close.

    What it needs next is known once these are done, whatever becomes of the other entries.
    """
    losses, done = rate_losses(entry, results), {result.key for result in results}

    def lacking(lr: float, seeds: int) -> list[Cell]:
        cells = [Cell(entry, lr, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
        return [cell for cell in cells if cell.key not in done]

    if rates := next_rates(losses, plan):
        return [Cell(entry, lr, FIRST_SEED) for lr in rates]
    best = best_rate(losses)
    if best is not None and (cells := lacking(best, plan.seeds_of(entry))):
        return cells
    return [cell for lr in close_rates(losses) for cell in lacking(lr, plan.seeds)[:1]]


def runs_left(entry: Entry, plan: Plan, results: Sequence[Result]) -> int:
    """Return about how many runs an entry still needs; a grid that may grow is taken to get two rates more."""
    cells = cells_of(entry, plan, results)
    if all(cell.seed > FIRST_SEED for cell in cells):  # the rates are known
        return len(cells)
    usual = len(plan.rates) + (2 if plan.grows else 0) - 1
    done = sum(result.entry == entry.name for result in results)
    return max(usual + plan.seeds_of(entry) - done, len(cells))


def at_best_rate(entry: Entry, results: Sequence[Result], plan: Plan) -> list[Result]:
    """Return the results at the rate that is reported of an entry, by seed."""
    best = reported_rate(rate_losses(entry, results), plan.seeds)
    return sorted((o for o in results if (o.entry, o.lr) == (entry.name, best)), key=lambda o: o.seed)
