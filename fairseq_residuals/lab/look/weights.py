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
from fairseq_residuals.lab.utils.tables import Cell
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


def masked(matrix: Tensor) -> Tensor:
    """Mask what is not drawn, by nan: entries below :data:`LEAST`, or below :data:`SHARE` of their row's largest."""
    size = matrix.abs().nan_to_num()
    return matrix.masked_fill((size < LEAST) | (size < SHARE * size.amax(1, keepdim=True)), float("nan"))


LEAST, SHARE = 0.1, 0.05
HELP = "draw the matrix of weights over depth that DLCL and its relatives have learned"


def configure(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, ("dlcl_pre", "dense_former"))
    add_output_flags(parser, "weights")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: a model has no matrix of such weights, or nothing can be written."""
    check_folder(args)
    measured = []
    for subject in subjects(args):
        found = depth_weights(subject.model)
        if not found:
            having = [name for name, v in VARIANTS.items() if v.depth_weights is not Variant.depth_weights]
            # others learn to mix over depth as well: by the input's values, or by single numbers
            raise UserError(
                f"{subject.label} has no matrix of weights over depth to draw, a learned number for each two layers;"
                f" the wirings with one are {', '.join(sorted(having))} (ode: with dlcl=true)"
            )
        measured += [(subject.label, subject.wiring, stack, weights) for stack, weights in found]
    figure, axes = plots.new_figure(len(measured), 2, width=plots.COLUMN, height=0.3 + 1.7 * len(measured))
    for (label, wiring, stack, weights), (left, right) in zip(measured, axes, strict=True):
        _draw_matrix(figure, left, f"{label}, {stack}", weights)
        _draw_column(right, wiring, weights, weights.matrix.size(1) // 3)
    rows: list[Sequence[Cell]] = [
        [label, stack, w.name, i + w.first_row, j + w.first_column, value]
        for label, _, stack, w in measured
        for i, line in enumerate(w.matrix.tolist())
        for j, value in enumerate(line)
        if not math.isnan(value)
    ]
    write(args, figure, ("model", "stack", "name", "row", "column", "weight"), rows)
    return 0


def _draw_matrix(figure: Any, panel: Any, title: str, weights: DepthWeights) -> None:
    limit = weights.matrix.abs().nan_to_num().max().item()
    shown = masked(weights.matrix).tolist()
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
