"""How time and memory grow with depth: a straight line through each contestant's points, and how far off they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairseq_residuals.lab.bench.report import MIB
from fairseq_residuals.lab.bench.rounds import Line
from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.utils.tables import Cell

QUANTITIES: dict[str, Callable[[Line], float | None]] = {
    "step (s)": lambda line: line.middle()["step"],
    "peak memory (MiB)": lambda line: None if (peak := line.median("peak_bytes")) is None else peak / MIB,
}
HEAD = ("contestant", "dims", "precision", "quantity", "per layer", "at 0 layers", "largest deviation")


class Growth(NamedTuple):
    """A contestant's points (layers, value), by depth, and the least squares' line through them."""

    contestant: str
    dimensions: str
    precision: str
    quantity: str
    points: list[tuple[int, float]]
    slope: float
    """Per layer of encoder and decoder."""
    intercept: float

    @property
    def deviation(self) -> float:
        """The largest distance of a point from the line, as a part of the point."""
        return max(abs(y - self.slope * x - self.intercept) / y for x, y in self.points)


def growths(lines: Sequence[Line]) -> list[Growth]:
    """Return the growth of every contestant with points at two depths or more."""
    found: dict[tuple[str, str, str, str], list[tuple[int, float]]] = {}
    for line in (line for line in lines if line.found):
        for quantity, value_of in QUANTITIES.items():
            key = (line.contestant.name, line.case.dimensions, line.case.precision, quantity)
            if value := value_of(line):
                found.setdefault(key, []).append((line.case.layers, value))
    made = []
    for key, points in found.items():
        if len({x for x, _ in points}) > 1:
            depths, values = zip(*sorted(points), strict=True)
            slope, intercept = np.polyfit(depths, values, 1).tolist()
            made.append(Growth(*key, sorted(points), slope, intercept))
    return made


def table(found: Sequence[Growth]) -> list[list[Cell]]:
    """Return the deviation in percent; of two points there is none to be seen."""
    return [
        [*growth[:4], growth.slope, growth.intercept, f"{growth.deviation:.1%}" if len(growth.points) > 2 else None]
        for growth in found
    ]


def draw(found: Sequence[Growth]) -> Any:
    """Draw a panel for each quantity against depth: points, and the straight lines through them."""
    panels = list(dict.fromkeys(growth.quantity for growth in found))
    names = {growth.contestant for growth in found}
    # room for the legend above
    figure, axes = plots.new_figure(1, len(panels), width=plots.PAGE, height=2.2 + 0.04 * len(names))
    several = len({growth[1:3] for growth in found}) > 1
    for quantity, panel in zip(panels, axes[0], strict=True):
        own = [growth for growth in found if growth.quantity == quantity]
        styles = plots.line_styles(growth.contestant.partition("+")[0] for growth in own)
        for growth, style in zip(own, styles, strict=True):
            label = ", ".join(growth[:3]) if several else growth.contestant
            x = np.array([x for x, _ in growth.points])
            panel.plot(x, growth.slope * x + growth.intercept, **style | {"marker": ""}, label=label)
            panel.plot(
                x,
                [y for _, y in growth.points],
                color=style["color"],
                linestyle="",
                marker=style["marker"] or ".",
                markersize=5,
            )
        plots.finish(panel, "layers of encoder and of decoder", quantity, whole_x=True)
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
    plots.legend(figure, axes[0][0])
    return figure
