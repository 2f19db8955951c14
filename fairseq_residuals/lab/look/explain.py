"""``fairseq-residuals explain ARCH``: the wiring as a diagram, the way a gradient takes, what a layer costs.

A layer costs parameters, and activations that are kept for the backward pass.
"""

from __future__ import annotations

import argparse
import copy
import logging
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.lab.look import diagram, models, plots
from fairseq_residuals.lab.look.models import add_size_flags
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.trace import Graph, run_below, trace_layer
from fairseq_residuals.lab.utils.tables import Cell, text_table
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack


def parameters_per_layer(stack: Stack) -> list[int]:
    """Return numbers; parameters that layers share are the lowest one's."""
    seen: set[int] = set()
    found = []
    for i in range(len(stack)):
        own = {id(p): p.numel() for p in stack[i].parameters() if id(p) not in seen}
        seen |= own.keys()
        found.append(sum(own.values()))
    return found


def parameters_of_the_whole(stack: Stack) -> int:
    """Return how many parameters span the stack: a top norm, weights over depth."""
    in_layers = {id(p) for layer in stack.children() if layer is not stack.wiring for p in layer.parameters()}
    return sum(p.numel() for p in stack.wiring.parameters() if id(p) not in in_layers)


def activations_per_layer(stack: Stack, sentences: int, tokens: int, device: str = "cpu") -> list[int]:
    """Return bytes that autograd keeps for each layer, counted while it runs in training mode and single precision.

    A tensor that several layers keep (a history along depth) is the lowest one's; what the encoder gives is nobody's.

    Args:
        stack: of a model on the device ``meta``; each layer gets storage only while it runs.
    """
    stream, context = run_below(stack, 0, sentences, tokens)
    context = replace(
        context, memory=_real(context.memory, device), self_attn_mask=_real(context.self_attn_mask, device)
    )
    wiring = _copy(stack.wiring, device)
    with torch.enable_grad():
        x = torch.zeros(stream["x"].shape, device=device, requires_grad=True)
        stream = wiring.open(x)
        kept_below: set[int] = set()
        found = []
        for i in range(len(stack)):
            layer = _copy(stack[i], device)
            # a copy of a layer by itself evaluates by a copy of the wiring that has no storage
            layer.evaluate = wiring.at(i)[0].evaluate
            counter = _Counter([*layer.parameters(), *wiring.parameters(), context.memory], kept_below)
            with torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
                stream, _ = layer(stream, context)
                stream = wiring.after_layer(i, stream)
            found.append(sum(counter.sizes.values()))
            # without the graph below them, so that its tensors are freed
            kept = kept_below | counter.sizes.keys()
            kept_below = {_storage(value) for value in stream.values()} & kept
            stream = {key: value.detach().requires_grad_() for key, value in stream.items()}
    return found


class _Counter:
    """Bytes of the storages that autograd keeps, each once."""

    def __init__(self, owned: list[Tensor | None], kept_below: set[int]) -> None:
        self.not_counted = {_storage(t) for t in owned if t is not None} | kept_below
        self.sizes: dict[int, int] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self.not_counted:
            self.sizes[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _real(tensor: Tensor | None, device: str) -> Tensor | None:
    return None if tensor is None else torch.zeros(tensor.shape, dtype=tensor.dtype, device=device)


def _copy(module: nn.Module, device: str) -> Any:
    made = copy.deepcopy(module).to_empty(device=device).train()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    return made


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
