"""Numbers per layer of several models: a line for each over depth, a panel for each stack."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fairseq_residuals.analysis import plots
from fairseq_residuals.analysis.measures import ByLayer
from fairseq_residuals.analysis.output import write
from fairseq_residuals.analysis.tables import Cell, few, text_table


def show_by_layer(
    args: argparse.Namespace, measured: Sequence[tuple[str, str, ByLayer]], y: str, column: str, log: bool = False
) -> None:
    """Prints a table of some layers, and writes the picture and all numbers.

    Args:
        measured: per model its label, its wiring (which chooses the style), and its numbers.
        y: label of the axis.
        column: the numbers' name in the CSV file.
    """
    stacks = [stack for stack in ("encoder", "decoder") if any(stack in found for _, _, found in measured)]
    figure, axes = plots.new_figure(1, len(stacks), height=2.2, sharey=True)
    styles = plots.line_styles(wiring for _, wiring, _ in measured)
    for stack, panel in zip(stacks, axes[0], strict=True):
        for (label, _, found), line in zip(measured, styles, strict=True):
            values = found.get(stack, [])
            panel.plot(range(1, len(values) + 1), values, label=label, **line)
        plots.finish(panel, f"{stack} layer", y if panel is axes[0][0] else "", whole_x=True)
    if log:
        axes[0][0].set_yscale("log")
    else:
        axes[0][0].set_ylim(bottom=0)
    plots.legend(figure, axes[0][-1])
    print(text_table(("stack", "layer", *(label for label, _, _ in measured)), _table(stacks, measured)))
    rows: list[list[Cell]] = [
        [label, wiring, stack, layer, value]
        for label, wiring, found in measured
        for stack, values in found.items()
        for layer, value in enumerate(values, start=1)
    ]
    write(args, figure, ("model", "wiring", "stack", "layer", column), rows)


def _table(stacks: Sequence[str], measured: Sequence[tuple[str, str, ByLayer]]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for stack in stacks:
        depth = max(len(found.get(stack, [])) for _, _, found in measured)
        for layer in few(range(1, depth + 1)):
            values = [found.get(stack, []) for _, _, found in measured]
            rows.append([stack, layer, *(v[layer - 1] if layer <= len(v) else None for v in values)])
    return rows
