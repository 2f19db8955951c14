"""``fairseq-residuals similarity``: how alike the outputs of every two layers are."""

from __future__ import annotations

import argparse
import math
import textwrap

import torch
from torch import Tensor

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import STACKS, add_output_flags, check_folder, table, write
from fairseq_residuals.lab.look.probes import ModelAndLoss, run_forward, unpadded
from fairseq_residuals.lab.look.subjects import add_flags, subjects


def similarity(subject: ModelAndLoss) -> dict[str, Tensor]:
    """Return the mean cosine similarity of the outputs of every two layers, by stack, (L, L).

    The mean is over all positions that are not padding.
    """
    outputs: dict[str, list[Tensor]] = {}
    for event in run_forward(subject):
        if event.point == "layer output":
            outputs.setdefault(event.stack, []).append(unpadded(event))
    found = {}
    for stack, tensors in outputs.items():
        directions = torch.nn.functional.normalize(torch.stack(tensors), dim=-1)
        found[stack] = torch.einsum("lpc,mpc->lm", directions, directions) / directions.size(1)
    return found


HELP = "draw the mean cosine similarity between the outputs of every pair of layers"


def configure(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    add_output_flags(parser, "similarity")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: nothing can be measured or written."""
    check_folder(args)
    measured = [(s.label, {k: v.tolist() for k, v in similarity(s).items()}) for s in subjects(args)]
    stacks = [stack for stack in STACKS if any(stack in found for _, found in measured)]
    width = plots.COLUMN if len(measured) <= 3 else plots.PAGE
    columns = min(6, len(measured))
    rows = math.ceil(len(measured) / columns) * len(stacks)
    figure, axes = plots.new_figure(rows, columns, width=width, height=0.5 + 1.15 * rows)
    for panel in axes.flat:
        panel.set_axis_off()
    lowest = min(value for _, found in measured for matrix in found.values() for row in matrix for value in row)
    image = None
    for number, (label, found) in enumerate(measured):
        band, column = divmod(number, columns)
        for row, stack in enumerate(stacks):
            panel = axes[band * len(stacks) + row][column]
            if stack not in found:
                continue
            panel.set_axis_on()
            image = plots.heat_map(panel, found[stack], min(lowest, 0.0), 1.0)
            panel.set_title(textwrap.fill(label, int(13 * width / columns)) if row == 0 else "", fontsize=7)
            panel.set_xlabel("layer" if row == len(stacks) - 1 else "", fontsize=7)
            panel.set_ylabel(f"{stack} layer" if column == 0 else "", fontsize=7)
    plots.colour_bar(figure, image, axes, "cosine similarity")
    print("Similarity of layers with the top one:")
    print(table([(label, {stack: matrix[-1] for stack, matrix in found.items()}) for label, found in measured]))
    written = [
        [label, stack, i, j, value]
        for label, found in measured
        for stack, matrix in found.items()
        for i, line in enumerate(matrix, start=1)
        for j, value in enumerate(line, start=1)
    ]
    write(args, figure, ("model", "stack", "layer", "other_layer", "cosine_similarity"), written)
    return 0
