"""``fairseq-residuals weights``: what a wiring has learned to combine over depth, a matrix per stack or part of one."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.probes import stacks
from fairseq_residuals.lab.look.subjects import add_flags, subjects
from fairseq_residuals.lab.utils.tables import Cell, few, text_table
from fairseq_residuals.wirings.core.base import DepthWeights, Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS


def depth_weights(model: nn.Module) -> list[tuple[str, DepthWeights]]:
    """Stack and matrix of all that have one; rows and columns count the layers of the whole stack."""
    found: list[tuple[str, DepthWeights]] = []
    for stack in stacks(model):
        below = 0  # layers of parts that come before
        for variant, layers in stack.segments():
            weights = variant.depth_weights(below)
            if weights is not None:
                found.append((stack.shape.stack, weights))
            below += len(layers)
    return found


def masked(matrix: Tensor, least: float, share: float) -> Tensor:
    """Mask entries, by nan, whose magnitude is less than ``least``, or than ``share`` of the largest of their row."""
    size = matrix.abs().nan_to_num()
    return matrix.masked_fill(size.eq(0) | (size < least) | (size < share * size.amax(1, keepdim=True)), float("nan"))


HELP = "draw the matrix of weights over depth that DLCL and its relatives have learned"


def configure(parser: argparse.ArgumentParser) -> None:
    drawn = parser.add_argument_group("what is drawn")
    drawn.add_argument("--least", type=float, default=0.1, metavar="W", help="hide smaller weights (%(default)s)")
    drawn.add_argument(
        "--share", type=float, default=0.05, metavar="S", help="hide less than this of a row's largest (%(default)s)"
    )
    drawn.add_argument(
        "--of-layer", type=int, metavar="N", help="whose part in each row is a line; default: a third up"
    )
    add_flags(parser)
    add_output_flags(parser, "weights")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: a model has no matrix of such weights, an unknown layer, or nothing can be written.
    """
    check_folder(args)
    measured = []
    for subject in subjects(args):
        found = depth_weights(subject.model)
        if not found:
            having = [name for name, v in VARIANTS.items() if v.depth_weights is not Variant.depth_weights]
            # others learn to mix over depth as well: by the input's values, or by single numbers
            raise UserError(
                f"{subject.label} has no matrix of weights over depth to draw, a learned number for each two layers;"
                f" the wirings with one are {', '.join(sorted(having))}"
            )
        measured += [(subject.label, subject.wiring, stack, weights) for stack, weights in found]
    columns = [_column(args.of_layer, stack, weights) for _, _, stack, weights in measured]
    figure, axes = plots.new_figure(len(measured), 2, width=plots.COLUMN, height=0.3 + 1.7 * len(measured))
    for (label, wiring, stack, weights), column, (left, right) in zip(measured, columns, axes, strict=True):
        _draw_matrix(figure, left, f"{label}, {stack}", weights, args)
        _draw_column(right, wiring, weights, column)
    head = ("model", "stack", "row", "kept", "largest", "of column")
    lines = [line for label, _, stack, weights in measured for line in _table(label, stack, weights, args)]
    print(text_table(head, lines))
    rows: list[Sequence[Cell]] = [
        [label, stack, w.name, i + w.first_row, j + w.first_column, value]
        for label, _, stack, w in measured
        for i, line in enumerate(w.matrix.tolist())
        for j, value in enumerate(line)
        if not math.isnan(value)
    ]
    write(args, figure, ("model", "stack", "name", "row", "column", "weight"), rows)
    return 0


def _column(wanted: int | None, stack: str, weights: DepthWeights) -> int:
    """Index of the column of a layer."""
    last = weights.first_column + weights.matrix.size(1) - 1
    number = weights.first_column + weights.matrix.size(1) // 3 if wanted is None else wanted
    if not weights.first_column <= number <= last:
        raise UserError(f"--of-layer {number}: the {stack} has {weights.first_column} to {last} (0 is the embedding)")
    return number - weights.first_column


def _draw_matrix(figure: Any, panel: Any, title: str, weights: DepthWeights, args: argparse.Namespace) -> None:
    limit = weights.matrix.abs().nan_to_num().max().item()
    shown = masked(weights.matrix, args.least, args.share).tolist()
    image = plots.heat_map(panel, shown, -limit, limit, diverging=True, first=(weights.first_column, weights.first_row))
    panel.set_title(title, fontsize=7)
    panel.set_xlabel(weights.columns, fontsize=7)
    panel.set_ylabel(weights.rows, fontsize=7)
    plots.colour_bar(figure, image, panel, weights.name)


def _draw_column(panel: Any, wiring: str, weights: DepthWeights, column: int) -> None:
    rows = [i for i, value in enumerate(weights.matrix[:, column].tolist()) if not math.isnan(value)]
    values = [weights.matrix[i, column].item() for i in rows]
    (line,) = plots.line_styles([wiring])
    panel.axhline(0, color="0.6", linewidth=0.6)
    panel.plot([i + weights.first_row for i in rows], values, **(line | {"marker": ".", "markevery": None}))
    plots.finish(panel, whole_x=True, title="")
    panel.set_title(f"weight of layer {column + weights.first_column}", fontsize=7)
    panel.set_xlabel(weights.rows, fontsize=7)


def _table(label: str, stack: str, weights: DepthWeights, args: argparse.Namespace) -> list[list[Cell]]:
    kept = masked(weights.matrix, args.least, args.share).isfinite()
    lines: list[list[Cell]] = []
    for i in few(range(weights.matrix.size(0)), 6):
        row = weights.matrix[i].nan_to_num()
        j = int(row.abs().argmax())
        lines.append([label, stack, i + weights.first_row, int(kept[i].sum()), row[j].item(), j + weights.first_column])
    return lines
