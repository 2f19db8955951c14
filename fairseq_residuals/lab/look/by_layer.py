"""Numbers per layer of several models over depth: a line for each model and a panel for each stack."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import write
from fairseq_residuals.lab.utils.tables import Cell, few, markdown_table

MOST_NAMED = 8
"""Most models that a legend names."""
STACKS = ("encoder", "decoder")
ByLayer = dict[str, list[float]]
"""A number for each layer from the bottom, by stack."""
Measured = Sequence[tuple[str, str, ByLayer]]


def draw_by_layer(measured: Measured, y: str) -> Any:
    """Return a figure and its panels.

    Args:
        measured: per model its label, its wiring (which chooses the style), and its numbers.
        y: label of the axis.
    """
    stacks = [stack for stack in STACKS if any(stack in found for _, _, found in measured)]
    figure, axes = plots.new_figure(1, len(stacks), height=2.2, sharey=True)
    styles = plots.line_styles(wiring for _, wiring, _ in measured)
    for stack, panel in zip(stacks, axes[0], strict=True):
        for (label, _, found), line in zip(measured, styles, strict=True):
            values = found.get(stack, [])
            panel.plot(range(1, len(values) + 1), values, label=label, **line)
        plots.finish(panel, f"{stack} layer", y if panel is axes[0][0] else "", whole_x=True)
    if len(measured) <= MOST_NAMED:
        plots.legend(figure, axes[0][-1])
    return figure, axes[0]


def show_by_layer(args: argparse.Namespace, measured: Measured, y: str, column: str, log: bool = False) -> None:
    """Print a table of some layers, and write the picture and all numbers.

    Args:
        measured, y: as for :func:`draw_by_layer`.
        column: the numbers' name in the CSV file.
    """
    figure, (panel, *_) = draw_by_layer(measured, y)
    if log:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    print(table([(label, found) for label, _, found in measured]))
    rows: list[list[Cell]] = [
        [label, wiring, stack, layer, value]
        for label, wiring, found in measured
        for stack, values in found.items()
        for layer, value in enumerate(values, start=1)
    ]
    write(args, figure, ("model", "wiring", "stack", "layer", column), rows)


def table(measured: Sequence[tuple[str, ByLayer]]) -> str:
    """Return a row for each model, by its label, with the numbers of some layers of each stack."""
    stacks = [stack for stack in STACKS if any(stack in found for _, found in measured)]
    depths = {stack: max(len(found.get(stack, [])) for _, found in measured) for stack in stacks}
    places = [(stack, layer) for stack, depth in depths.items() for layer in few(range(1, depth + 1), 5)]
    rows = [
        [label, *(next(iter(found.get(stack, [])[layer - 1 : layer]), None) for stack, layer in places)]
        for label, found in measured
    ]
    return markdown_table(["model", *(f"{stack[:3]} {layer}" for stack, layer in places)], rows)
