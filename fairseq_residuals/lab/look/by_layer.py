"""Numbers per layer of several models over depth.

There is a line for each model and a panel for each stack; where the lines are too many to be told apart, a small panel
for each model.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import write
from fairseq_residuals.lab.utils.tables import Cell, few, text_table

MOST_TOGETHER = 8
"""Models in one panel; more have a panel each."""
COLUMNS, TITLE_WIDTH = 6, 22
"""Small panels side by side on a page; characters of a title on one line."""
DASHES = {"encoder": plots.DASHED, "decoder": plots.SOLID}
ByLayer = dict[str, list[float]]
"""A number for each layer from the bottom, by stack."""
Measured = Sequence[tuple[str, str, ByLayer]]


def show_by_layer(args: argparse.Namespace, measured: Measured, y: str, column: str, log: bool = False) -> None:
    """Print a table of some layers, and write the picture and all numbers.

    Args:
        measured: per model its label, its wiring (which chooses the style), and its numbers.
        y: label of the axis.
        column: the numbers' name in the CSV file.
    """
    stacks = [stack for stack in ("encoder", "decoder") if any(stack in found for _, _, found in measured)]
    figure = (_together if len(measured) <= MOST_TOGETHER else _apart)(stacks, measured, y, log)
    print(text_table(*_table(stacks, measured)))
    rows: list[list[Cell]] = [
        [label, wiring, stack, layer, value]
        for label, wiring, found in measured
        for stack, values in found.items()
        for layer, value in enumerate(values, start=1)
    ]
    write(args, figure, ("model", "wiring", "stack", "layer", column), rows)


def _together(stacks: Sequence[str], measured: Measured, y: str, log: bool) -> Any:
    figure, axes = plots.new_figure(1, len(stacks), height=2.2, sharey=True)
    styles = plots.line_styles(wiring for _, wiring, _ in measured)
    for stack, panel in zip(stacks, axes[0], strict=True):
        for (label, _, found), line in zip(measured, styles, strict=True):
            _draw(panel, found.get(stack, []), label=label, **line)
        plots.finish(panel, f"{stack} layer", y if panel is axes[0][0] else "", whole_x=True)
    _scale(axes[0][0], log)
    plots.legend(figure, axes[0][-1])
    return figure


def _apart(stacks: Sequence[str], measured: Measured, y: str, log: bool) -> Any:
    """Draw each model in its colour, those that others are compared with behind it in grey."""
    rows = -(-len(measured) // COLUMNS)
    figure, axes = plots.new_figure(rows, COLUMNS, plots.PAGE, 0.6 + 1.15 * rows, sharex=True, sharey=True)
    panels = list(axes.flat)
    references = [(label, found, plots.REFERENCES[w]) for label, w, found in measured if w in plots.REFERENCES]
    for panel, (label, wiring, found) in zip(panels, measured, strict=False):
        for name, other, grey in references:
            for stack in stacks:
                line = {"color": grey, "linestyle": DASHES[stack], "linewidth": 0.7}
                _draw(panel, other.get(stack, []), label=f"{name}, {stack}", **line)
        colour = plots.style(wiring)[0]
        colour = plots.BLACK if colour == plots.GREY else colour  # which is that of the others here
        for stack in stacks:
            line = {"linestyle": DASHES[stack], "linewidth": 1.2}
            panel.plot([], [], label=f"titled, {stack}", color=plots.BLACK, **line)
            _draw(panel, found.get(stack, []), color=colour, **line)
        plots.finish(panel, whole_x=True)
        panel.set_title(textwrap.fill(label, TITLE_WIDTH), fontsize=6.5, pad=2)
        panel.tick_params(labelsize=6, labelbottom=panel in panels[len(measured) - COLUMNS : len(measured)])
    for panel in panels[len(measured) :]:
        panel.set_visible(False)
    _scale(panels[0], log)
    if log:
        panels[0].yaxis.get_major_locator().set_params(numticks=99)  # every power of ten
    figure.supxlabel("layer", fontsize=8)
    figure.supylabel(y, fontsize=8)
    plots.legend(figure, panels[0])
    return figure


def _draw(panel: Any, values: Sequence[float], **line: Any) -> None:
    panel.plot(range(1, len(values) + 1), values, **line)


def _scale(panel: Any, log: bool) -> None:
    if log:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)


def _table(stacks: Sequence[str], measured: Measured) -> tuple[list[str], list[list[Cell]]]:
    """Return head and rows: a column for each model, or a row where they are many."""
    places = [(stack, layer) for stack in stacks for layer in few(range(1, _depth(stack, measured) + 1))]
    columns: list[list[Cell]] = [["stack", *(stack for stack, _ in places)], ["layer", *(n for _, n in places)]]
    for label, _, found in measured:
        columns.append([label, *(_at(found.get(stack, []), layer) for stack, layer in places)])
    if len(measured) > MOST_TOGETHER:
        return ["model", *(f"{stack[:3]} {n}" for stack, n in places)], columns[2:]
    head, *rows = zip(*columns, strict=True)
    return list(map(str, head)), list(map(list, rows))


def _depth(stack: str, measured: Measured) -> int:
    return max(len(found.get(stack, [])) for _, _, found in measured)


def _at(values: Sequence[float], layer: int) -> float | None:
    return values[layer - 1] if layer <= len(values) else None
