"""``fairseq-residuals explain ARCH``: the wiring as a diagram, the way a gradient takes, what a layer costs."""

from __future__ import annotations

import argparse
import logging
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.analysis import diagram, models, plots
from fairseq_residuals.analysis.memory import activations_per_layer, parameters_of_the_whole, parameters_per_layer
from fairseq_residuals.analysis.output import add_output_flags, check_folder, write
from fairseq_residuals.analysis.size_flags import add_size_flags
from fairseq_residuals.analysis.trace import trace_layer
from fairseq_residuals.analysis.wiring_graph import Graph
from fairseq_residuals.core.base import Variant
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.stack import Stack
from fairseq_residuals.models.architectures import ARCHITECTURES
from fairseq_residuals.utils.tables import Cell, text_table

HELP = "draw how architectures are wired: equations, the way a gradient takes, memory per layer"
BYTES_PER_PARAMETER = 4


@dataclass
class Drawn:
    """A variant in one stack of one model."""

    variant: Variant
    stack: str
    layer: int
    """Which was drawn, from 1."""
    of: str
    """Which layers it stands for; empty: all."""
    graph: Graph


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("arch", nargs="+", metavar="ARCH", help="architectures, or variants as --variants names them")
    parser.add_argument("--stack", choices=("encoder", "decoder"), help="only this one")
    add_size_flags(parser)
    add_output_flags(parser, "explain")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: there is no such architecture, or nothing can be written.
    """
    check_folder(args)
    drawn: list[Drawn] = []
    notes: list[tuple[str, ...]] = []
    costs: list[list[Cell]] = []
    for name, stack in _stacks(args):
        of_stack = _costs(name, stack, args)
        costs += of_stack
        for one in _drawn(stack):
            drawn.append(one)
            *_, parameters, _, activations = of_stack[one.layer - 1]
            notes.append((f"{parameters:,} parameters", f"activations {activations:.1f} MB"))
            print("\n".join(_tell(one)), end="\n\n")
    if not drawn:
        raise UserError(f"--stack {args.stack}: {', '.join(args.arch)} has no {args.stack}")
    head = ("model", "stack", "layer", "parameters", "parameters_MB", "activations_MB")
    print(
        text_table(("model", "stack", "layers", "parameters each", "MB each", "activations, MB each"), _grouped(costs))
    )
    batch = f"{args.sentences} sentences of {args.tokens} tokens"
    print(f"MB = 10^6 bytes, single precision; activations kept for the backward pass of {batch}, on this CPU")
    write(args, _picture(drawn, notes), head, costs)
    return 0


def _picture(drawn: list[Drawn], notes: list[tuple[str, ...]]) -> Any:
    needed = len(drawn) * max(diagram.width(one.graph) for one in drawn)
    width = max(needed, plots.COLUMN if len(drawn) <= 2 else plots.PAGE * max(1.0, len(drawn) / 4))
    wrapped = [
        "\n".join(textwrap.fill(line, int(16 * width / len(drawn))) for line in (*_equations(one), *note))
        for one, note in zip(drawn, notes, strict=True)
    ]
    rows = max(len(one.graph.nodes) for one in drawn)
    below = max(text.count("\n") for text in wrapped) + 1
    figure, axes = plots.new_figure(1, len(drawn), width=width, height=0.5 + 0.1 * below + 0.25 * rows)
    for one, text, panel in zip(drawn, wrapped, axes[0], strict=True):
        diagram.draw(panel, one.graph, f"{one.variant.title}\n{one.stack}{one.of}", text)
    return figure


def _equations(one: Drawn) -> list[str]:
    """Return the equations, each in a line of its own."""
    return [part for line in one.variant.equations_of(one.variant.config) for part in line.split("; ")]


def _stacks(args: argparse.Namespace) -> Iterator[tuple[str, Stack]]:
    """Return the stacks of a model without storage: even the largest is built at once."""
    logging.disable(logging.INFO)  # what building prints says nothing here
    try:
        for name in args.arch:
            if Path(name).is_file():
                raise UserError(
                    f"{name} is a file: explain takes an architecture, such as transformer_b2t_6l, or a variant, such"
                    " as b2t"
                )
            known = {"arch": [name], "variants": None} if name in ARCHITECTURES else {"arch": None, "variants": [name]}
            asked = argparse.Namespace(**{**vars(args), **known, "checkpoint": None, "data": None})
            for source in models.sources(asked):
                with torch.device("meta"):
                    model, _, _ = models.build(source, asked)
                for stack in models.stacks(model):
                    if args.stack in (None, stack.shape.stack):
                        yield source.arch if known["arch"] else name, stack
    finally:
        logging.disable(logging.NOTSET)


def _drawn(stack: Stack) -> Iterator[Drawn]:
    """Draw each variant of a stack by its second layer: in the first, what comes from below may be missing."""
    below = 0
    for variant, layers in stack.segments():
        place = below + min(1, len(layers) - 1)
        several = f", layers {below + 1} to {below + len(layers)}" if len(layers) < len(stack) else ""
        graph = trace_layer(stack, place)
        yield Drawn(variant, stack.shape.stack, place + 1, several, graph)
        below += len(layers)


def _tell(one: Drawn) -> list[str]:
    return [
        f"{one.variant.title}, {one.stack}{one.of}: {one.variant.paper}",
        *(f"    {equation}" for equation in one.variant.equations_of(one.variant.config)),
        "  A layer, as it runs; * is the gradient's easiest way:",
        *(f"    {line}" for line in diagram.as_text(one.graph)),
        f"  That way passes {one.graph.crossed('norm')} norms and {one.graph.crossed('sublayer')} sub-layers.",
    ]


def _costs(name: str, stack: Stack, args: argparse.Namespace) -> list[list[Cell]]:
    activations = activations_per_layer(stack, args.sentences, args.tokens)
    rows: list[list[Cell]] = [
        [name, stack.shape.stack, i, number, number * BYTES_PER_PARAMETER / 1e6, size / 1e6]
        for i, (number, size) in enumerate(zip(parameters_per_layer(stack), activations, strict=True), start=1)
    ]
    if whole := parameters_of_the_whole(stack):
        rows.append([name, stack.shape.stack, "whole stack", whole, whole * BYTES_PER_PARAMETER / 1e6, 0.0])
    return rows


def _grouped(costs: list[list[Cell]]) -> list[list[Cell]]:
    """Return neighbouring layers that cost the same in one line."""
    lines: list[list[Cell]] = []
    for name, stack, layer, *rest in costs:
        if lines and lines[-1][:2] == [name, stack] and lines[-1][3:] == rest:
            lines[-1][2] = f"{str(lines[-1][2]).split('-')[0]}-{layer}"
        else:
            lines.append([name, stack, str(layer), *rest])
    return lines
