"""Where the lines of a chart and the names of the family tree stand; templates/drawings.html draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Series = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, BELOW, RIGHT, TOP = 340, 220, 46, 36, 8, 14
YEAR, ROW = 90, 21
"""Pixels between two years and two rows of the tree."""


@dataclass
class Chart:
    """Lines over common axes, in pixels."""

    title: str
    across: str
    up: str
    x_ticks: list[tuple[float, float]]
    """Places and numbers."""
    y_ticks: list[tuple[float, float]]
    lines: dict[str, list[tuple[float, float]]]
    """Points by label."""
    log: bool


def chart(title: str, across: str, up: str, series: Mapping[str, Series], *, log: bool = False) -> Chart:
    """Return lines over common axes.

    Args:
        across, up: what the axes show.
        series: points (x, y) by label.
        log: whether the axis that goes up is logarithmic; its ticks are exponents, and what is not
            positive is left out.
    """
    scale = math.log10 if log else float
    lines = {label: [(x, scale(y)) for x, y in points if not log or y > 0] for label, points in series.items()}
    points = [point for line in lines.values() for point in line]
    (left, right), (low, high) = ((min(v), max(v)) for v in zip(*points, strict=True))
    low, high = (math.floor(low), math.ceil(high)) if log else (min(low, 0.0), high * 1.05)
    ticks = list(range(int(low), int(high) + 1)) if log else [low + (high - low) * i / 4 for i in range(5)]

    def across_at(x: float) -> float:
        return LEFT + (x - left) / ((right - left) or 1) * (WIDTH - LEFT - RIGHT)

    def up_at(y: float) -> float:
        return HEIGHT - BELOW - (y - low) / ((high - low) or 1) * (HEIGHT - BELOW - TOP)

    placed = {label: [(across_at(x), up_at(y)) for x, y in line] for label, line in lines.items()}
    x_ticks = [(across_at(x), x) for x in (left, (left + right) / 2, right)]
    return Chart(title, across, up, x_ticks, [(up_at(y), y) for y in ticks], placed, log)


@dataclass
class Descent:
    """A wiring in the family tree, right of and below the one that it came from."""

    name: str
    x: int
    y: int
    parent: tuple[int, int] | None
    others: list[str]
    """The further wirings that it came from."""


def tree(parents: Mapping[str, Sequence[str]], years: Mapping[str, int]) -> list[Descent]:
    """Return the wirings from the top to the bottom.

    Args:
        parents: the wirings that a wiring came from; below the first of these it is drawn.
    """
    order: list[str] = []

    def visit(name: str) -> None:
        order.append(name)
        children = (child for child in parents if parents[child][:1] == [name])
        for child in sorted(children, key=lambda n: (years[n], n)):
            visit(child)

    for root in (name for name in parents if not parents[name]):
        visit(root)
    at = {name: (30 + YEAR * (years[name] - min(years.values())), 40 + ROW * i) for i, name in enumerate(order)}
    return [
        Descent(name, *at[name], at[parents[name][0]] if parents[name] else None, list(parents[name][1:]))
        for name in order
    ]
