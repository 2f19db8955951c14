"""``fairseq-residuals explain ARCH``: the wiring as a diagram, the way a gradient takes, what a layer costs.

A layer costs parameters, and activations that are kept for the backward pass.
"""

from __future__ import annotations

import argparse
import copy
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.probes import kept_for_backward, stacks, storage
from fairseq_residuals.lab.look.scheme import Scheme, module_names, scheme_of
from fairseq_residuals.lab.look.subjects import add_size_flags, library_model, of_python_file
from fairseq_residuals.lab.look.trace import first_stream, trace_layer
from fairseq_residuals.lab.utils.tables import Cell, markdown_table
from fairseq_residuals.wirings.blocks.transformer import TransformerStack
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.utils.progress import quiet


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


def activations_per_layer(stack: Stack, sentences: int, tokens: int) -> list[int]:
    """Return bytes that autograd keeps for each layer, counted while it runs in training mode and single precision.

    A tensor that several layers keep (a history along depth) is the lowest one's; what the encoder gives is nobody's.

    Args:
        stack: of a model on the device ``meta``; each layer gets storage only while it runs.
    """
    stream, context = first_stream(stack, sentences, tokens)
    context = replace(context, memory=_real(context.memory), self_attn_mask=_real(context.self_attn_mask))
    wiring = _copy(stack.wiring)
    with torch.enable_grad():
        x = torch.zeros(stream["x"].shape, requires_grad=True)
        stream = wiring.open(x)
        kept_below: set[int] = set()
        found = []
        for i in range(len(stack)):
            layer = _copy(stack[i])
            # a copy of a layer by itself evaluates by a copy of the wiring that has no storage
            layer.evaluate = wiring.at(i)[0].evaluate
            owned = {storage(t) for t in [*layer.parameters(), *wiring.parameters(), context.memory] if t is not None}
            with kept_for_backward() as kept:
                stream, _ = layer(stream, context)
                stream = wiring.after_layer(i, stream)
            found.append(sum(size for key, size in kept.items() if key not in owned | kept_below))
            # without the graph below them, so that its tensors are freed
            kept_below = {storage(value) for value in stream.values()} & (kept_below | kept.keys() - owned)
            stream = {key: value.detach().requires_grad_() for key, value in stream.items()}
    return found


def _real(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.zeros(tensor.shape, dtype=tensor.dtype)


def _copy(module: nn.Module) -> Any:
    made = copy.deepcopy(module).to_empty(device="cpu").train()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    return made


HELP = "draw how architectures are wired: equations, the way a gradient takes, memory per layer"
BYTES_PER_PARAMETER = 4


@dataclass
class Panel:
    """The picture of a wiring in one stack of one model."""

    scheme: Scheme
    title: str
    below: list[str]
    """Lines under the scheme."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "arch",
        nargs="+",
        metavar="ARCH",
        help="architectures, wirings as --wirings names them, or Python files as --python of `gradients` takes them",
    )
    parser.add_argument("--stack", choices=("encoder", "decoder"), help="only this one")
    add_size_flags(parser)
    add_output_flags(parser, "explain")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: there is no such architecture, or nothing can be written."""
    check_folder(args)
    drawn: list[Panel] = []
    costs: list[list[Cell]] = []
    for name, stack in _stacks(args):
        of_stack = _costs(name, stack, args)
        costs += of_stack
        drawn += _explained(stack, of_stack)
    if not drawn:
        raise UserError(f"--stack {args.stack}: {', '.join(args.arch)} has no {args.stack}")
    head = ("model", "stack", "layer", "parameters", "parameters_MB", "activations_MB")
    print(
        markdown_table(
            ("model", "stack", "layers", "parameters each", "MB each", "activations, MB each"), _grouped(costs), left=3
        )
    )
    batch = f"{args.sentences} sentences of {args.tokens} tokens"
    print(f"MB = 10^6 bytes, single precision; activations kept for the backward pass of {batch}, on this CPU")
    write(args, _picture(drawn), head, costs)
    return 0


def _picture(drawn: list[Panel]) -> Any:
    across, up = (max(getattr(one.scheme, side) for one in drawn) for side in ("width", "height"))
    width = max(len(drawn) * (across / INCH + 0.1), plots.COLUMN if len(drawn) <= 2 else plots.PAGE)
    wrapped = ["\n".join(textwrap.fill(line, int(16 * width / len(drawn))) for line in one.below) for one in drawn]
    below = max(text.count("\n") for text in wrapped) + 1
    figure, axes = plots.new_figure(1, len(drawn), width=width, height=0.5 + 0.1 * below + up / INCH)
    for one, text, panel in zip(drawn, wrapped, axes[0], strict=True):
        draw_scheme(panel, one.scheme, one.title, text, (across, up))
    return figure


def _stacks(args: argparse.Namespace) -> Iterator[tuple[str, Stack]]:
    """Yield the stacks that are named, without storage: even the largest is built at once.

    Raises:
        UserError: a name is that of no wiring or architecture, or of a file without a stack that can be drawn.
    """
    for name in args.arch:
        with quiet():
            found = list(_named_stacks(name, args))
        yield from ((label, stack) for label, stack in found if args.stack in (None, stack.shape.stack))


def _named_stacks(name: str, args: argparse.Namespace) -> Iterator[tuple[str, Stack]]:
    file = Path(name)
    if file.suffix == ".py":
        for stack in stacks(of_python_file(file).model):
            if not isinstance(stack, TransformerStack):
                raise UserError(
                    f"{name}: explain draws stacks of build_stack, not those that wrap makes of your layers"
                )
            yield file.stem, stack.to("meta")
    elif file.is_file():
        raise UserError(
            f"{name} is a file: explain takes an architecture, such as transformer_b2t_6l, or a wiring, such"
            " as b2t; or a Python file that ends in .py"
        )
    elif find_spec("fairseq") is None:
        with torch.device("meta"):
            model = library_model(name, args)
        yield from ((name, stack) for stack in stacks(model))
    else:
        yield from _fairseq_stacks(name, args)


def _fairseq_stacks(name: str, args: argparse.Namespace) -> Iterator[tuple[str, Stack]]:
    from fairseq_residuals.lab.look import models
    from fairseq_residuals.plugin.models.architectures import ARCHITECTURES

    known = {"arch": [name], "variants": None} if name in ARCHITECTURES else {"arch": None, "variants": [name]}
    asked = argparse.Namespace(**{**vars(args), **known, "checkpoint": None, "data": None})
    for source in models.sources(asked):
        with torch.device("meta"):
            model, _, _ = models.build(source, asked)
        yield from ((source.arch if known["arch"] else name, stack) for stack in stacks(model))


def _explained(stack: Stack, costs: list[list[Cell]]) -> Iterator[Panel]:
    """Print what each wiring of a stack is, and yield its picture, by its second layer.

    In the first layer, what comes from below may be missing.
    """
    below = 0
    for variant, layers in stack.segments():
        place = below + min(1, len(layers) - 1)
        of = f", layers {below + 1} to {below + len(layers)}" if len(layers) < len(stack) else ""
        equations, graph = variant.equations_of(variant.config), trace_layer(stack, place)
        print(f"{variant.title}, {stack.shape.stack}{of}: {variant.paper}")
        print(*(f"    {equation}" for equation in equations), sep="\n")
        passed = f"{graph.crossed('norm')} norms and {graph.crossed('sublayer')} sub-layers"
        print(f"  The gradient's easiest way through a layer passes {passed}.\n")
        *_, parameters, _, activations = costs[place]
        lines = [part for line in equations for part in line.split("; ")]
        lines += [f"{parameters:,} parameters", f"activations {activations:.1f} MB"]
        scheme = scheme_of(graph, module_names(type(variant), stack))
        yield Panel(scheme, f"{variant.title}\n{stack.shape.stack}{of}", lines)
        below += len(layers)


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


FILL = {"sublayer": "#DCE9F4", "norm": "#F8E3B5", "learned": "#D8F0DD", "tie": "0.35"}
INCH = 130
"""Pixels of a scheme in an inch."""


def draw_scheme(axes: Any, scheme: Scheme, title: str, below: str, size: tuple[float, float]) -> None:
    """Draw a scheme from the bottom to the top; the gradient's way is coloured and thicker.

    Args:
        below: what is written under the picture.
        size: pixels across and up of the largest of several schemes.
    """
    from matplotlib.patches import Circle, FancyBboxPatch

    for line in scheme.lines:
        look = {"color": plots.VERMILION, "linewidth": 2.0} if line.on_way else {"color": "0.35", "linewidth": 0.8}
        axes.plot(*zip(*line.points, strict=True), solid_joinstyle="round", **look)
        axes.text(*line.beside, line.factor, fontsize=6, color=plots.GREEN if line.learned else "0.35", zorder=4)
    for box in scheme.boxes:
        edge = plots.VERMILION if box.on_way else plots.GREEN if box.learned else "0.2"
        fill = FILL.get("learned" if box.learned else box.kind, "white")
        style: Any = {"facecolor": fill, "edgecolor": edge, "linewidth": 1.4 if box.on_way else 0.8}
        if box.kind == "sum" and len(box.lanes) < 2:
            axes.add_patch(Circle((box.x, box.y), box.half, zorder=3, **style))
        elif box.kind not in ("in", "out"):
            corner, rounding = (box.x - box.half, box.y - box.high), 7 if box.kind == "norm" else 1
            shape = f"round,pad=0,rounding_size={min(rounding, box.high)}"
            axes.add_patch(FancyBboxPatch(corner, 2 * box.half, 2 * box.high, boxstyle=shape, zorder=3, **style))
        text = "" if box.kind == "tie" else box.name
        slant = "italic" if box.kind in ("in", "out") else "normal"
        axes.text(box.x, box.y, text, ha="center", va="center", fontsize=6.5, fontstyle=slant, zorder=4)
    middle = scheme.width / 2
    axes.set(xlim=(middle - size[0] / 2, middle + size[0] / 2), ylim=(scheme.height, scheme.height - size[1]))
    axes.set_aspect("equal")
    axes.set_title(title, fontsize=8)
    axes.text(0.5, -0.01, below, ha="center", va="top", fontsize=6, transform=axes.transAxes)
    axes.set_axis_off()
