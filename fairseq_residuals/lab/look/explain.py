"""``fairseq-residuals explain WIRING``: its equations, a layer as a diagram, and the way that a gradient takes."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.probes import stacks
from fairseq_residuals.lab.look.scheme import Scheme, module_names, scheme_of
from fairseq_residuals.lab.look.subjects import add_model_size_flags, library_model, of_python_file
from fairseq_residuals.lab.look.trace import Graph, trace_layer
from fairseq_residuals.lab.utils.tables import Cell
from fairseq_residuals.wirings.blocks.transformer import TransformerStack
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.stack import Stack

HELP = "draw how a layer is wired: equations, scheme, and the way that a gradient takes"


@dataclass
class Panel:
    """The picture of a wiring in one stack."""

    name: str
    """Name of the stack: what the user gave, and encoder or decoder."""
    layer: int
    """Layer that is drawn, counted from 1."""
    graph: Graph
    scheme: Scheme
    title: str
    equations: list[str]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "wirings",
        nargs="+",
        metavar="WIRING",
        help="NAME, NAME/k=v,..., or a list such as post_ln:0-5,pre_ln:6-17; or files as `gradients --python` takes",
    )
    parser.add_argument("--stack", choices=("encoder", "decoder"), help="only this one")
    add_model_size_flags(parser)
    parser.set_defaults(vocabulary=5, seed=1)
    add_output_flags(parser, "explain")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: there is no such wiring, or nothing can be written."""
    check_folder(args)
    panels = [
        panel
        for name in args.wirings
        for stack in _stacks(name, args)
        if args.stack in (None, stack.shape.stack)
        for panel in _explained(name, stack)
    ]
    if not panels:
        raise UserError(f"--stack {args.stack}: {', '.join(args.wirings)} has no {args.stack}")
    rows: list[list[Cell]] = [
        [
            panel.name,
            panel.layer,
            n.number,
            n.kind,
            n.label,
            " ".join(map(str, n.inputs)),
            int(n.number in panel.graph.path),
        ]
        for panel in panels
        for n in panel.graph.nodes
    ]
    write(args, _picture(panels), ("stack", "layer", "box", "kind", "label", "reads", "on_the_gradients_way"), rows)
    return 0


def _picture(panels: list[Panel]) -> Any:
    across, up = (max(getattr(one.scheme, side) for one in panels) for side in ("width", "height"))
    width = max(len(panels) * (across / INCH + 0.1), plots.COLUMN if len(panels) <= 2 else plots.PAGE)
    characters = int(16 * width / len(panels))
    texts = [_folded(one.equations, characters) for one in panels]
    titles = [_folded(one.title.split("\n"), characters * 3 // 4) for one in panels]
    above, below = (max(text.count("\n") + 1 for text in of) for of in (titles, texts))
    bottom, middle, top = 0.1 + 0.12 * below, up / INCH, 0.2 + 0.15 * above
    height = bottom + middle + top
    figure, axes = plots.new_figure(1, len(panels), width=width, height=height)
    figure.set_layout_engine("none")  # it misjudges how far what is written reaches from panels of equal aspect
    for i, (one, title, text, axis) in enumerate(zip(panels, titles, texts, axes[0], strict=True)):
        axis.set_position((i / len(panels), bottom / height, 1 / len(panels), middle / height))
        draw_scheme(axis, one.scheme, title, text, (across, up))
    return figure


def _folded(lines: Iterable[str], characters: int) -> str:
    return "\n".join(textwrap.fill(line, characters) for line in lines)


def _stacks(name: str, args: argparse.Namespace) -> list[Stack]:
    """Return the stacks of a wiring or a Python file, without storage: even the largest is built at once.

    Raises:
        UserError: there is no such wiring, or the file has no stack that can be drawn.
    """
    if not name.endswith(".py"):
        if Path(name).is_file():
            raise UserError(f"{name} is a file: explain takes a wiring, such as b2t, or a Python file that ends in .py")
        with torch.device("meta"):
            return stacks(library_model(name, args))
    found = stacks(of_python_file(Path(name)).model)
    if not all(isinstance(stack, TransformerStack) for stack in found):
        raise UserError(f"{name}: explain draws stacks of build_stack, not those that wrap makes of your layers")
    return [stack.to("meta") for stack in found]


def _explained(name: str, stack: Stack) -> Iterator[Panel]:
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
        scheme = scheme_of(graph, module_names(stack, place))
        title = f"{variant.title}\n{stack.shape.stack}{of}"
        lines = [part for line in equations for part in line.split("; ")]
        yield Panel(f"{name}, {stack.shape.stack}", place + 1, graph, scheme, title, lines)
        below += len(layers)


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
    axes.annotate(below, (0.5, 0), (0, -4), "axes fraction", "offset points", ha="center", va="top", fontsize=6)
    axes.set_axis_off()
