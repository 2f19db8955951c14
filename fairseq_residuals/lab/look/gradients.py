"""``fairseq-residuals gradients``: gradient norms per layer, or at each point inside a layer."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import ByLayer, add_output_flags, check_folder, show_by_layer, write
from fairseq_residuals.lab.look.probes import SUBLAYERS, Event, ModelAndLoss, gradient_norm, run_backward, stacks
from fairseq_residuals.lab.look.subjects import add_flags, subjects
from fairseq_residuals.lab.utils.tables import Cell, markdown_table
from fairseq_residuals.wirings.core.errors import UserError

ABOVE = "norm above layer"


def parameter_gradients(subject: ModelAndLoss) -> ByLayer:
    """Return the norm of the loss's gradient with respect to all parameters of a layer, its wiring's included.

    Parameters that layers share count in each.
    """
    subject.backward()
    return {stack.shape.stack: [gradient_norm(stack[i]) for i in range(len(stack))] for stack in stacks(subject.model)}


@dataclass(frozen=True)
class PointInLayer:
    """A point inside a layer."""

    stack: str
    layer: int
    """Layer, counted from 1."""
    point: str
    is_norm: bool
    """Whether it is what a norm of the wiring gives."""
    norm: float
    """Norm of the loss's gradient with respect to the tensor at this point."""


def parts(subject: ModelAndLoss) -> list[PointInLayer]:
    """Return every tensor that the wiring of a layer handles, in the order in which they are made.

    Points of one name in a layer are counted: "norm FFN", "norm FFN (2)".
    """
    seen, norms = run_backward(subject)
    told: set[int] = set()
    named: Counter[tuple[str, int, str]] = Counter()
    found = []
    for event in seen:
        # what one module gives the next takes as it is; a layer's input is listed in that layer too
        if event.layer and id(event.tensor) in norms and (event.point == "layer input" or id(event.tensor) not in told):
            place = (event.stack, event.layer, _name(event))
            named[place] += 1
            point = place[-1] if named[place] == 1 else f"{place[-1]} ({named[place]})"
            found.append(PointInLayer(event.stack, event.layer, point, event.point == "norm", norms[id(event.tensor)]))
        told.add(id(event.tensor))
    return found


def _name(event: Event) -> str:
    if event.kind is None:
        return {"norm input": "combined", "norm": ABOVE}.get(event.point, event.point)
    sublayer = SUBLAYERS[event.kind]
    names = {"norm input": "sum", "norm": "norm", "fed": "input of", "sublayer": "", "stream": "sum"}
    return f"{names[event.point]} {sublayer}".strip()


HELP = "plot the norm of the gradient per layer, or with --parts at each point inside a layer"


def configure(parser: argparse.ArgumentParser) -> None:
    measured = parser.add_argument_group("what is measured")
    measured.add_argument(
        "--parts", action="store_true", help="with respect to each point inside a layer, not to a layer's parameters"
    )
    measured.add_argument(
        "--at",
        metavar="STACK:LAYER,...",
        help="for --parts, layers counted from 1; default: the top one, such as decoder:18",
    )
    add_flags(parser)
    add_output_flags(parser, "gradients")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: nothing can be measured or written."""
    check_folder(args)
    if args.parts:
        return _show_parts(args)
    if args.at:
        raise UserError("--at chooses the layers of --parts; give both or none")
    measured = [(s.label, s.wiring, parameter_gradients(s)) for s in subjects(args)]
    show_by_layer(args, measured, "gradient norm of parameters", "gradient_norm", log=True)
    return 0


def _show_parts(args: argparse.Namespace) -> int:
    measured = [(s.label, s.wiring, _chosen(s, parts(s), args.at)) for s in subjects(args)]
    most = max(len({p.point for p in found}) for _, _, found in measured)
    width = plots.COLUMN if len(measured) == 1 else plots.PAGE
    figure, panels = plots.new_panels(len(measured), 3, width, 0.8 + 0.19 * most)
    for (label, wiring, found), panel in zip(measured, panels, strict=True):
        _draw_parts(panel, wiring, [p for p in found if p.point != ABOVE])
        plots.finish(panel, "relative gradient norm", title=label)
        panel.grid(axis="y", visible=False)
    plots.legend(figure, panels[0], colour=plots.GREY)
    head = ("model", "stack", "layer", "point", "gradient_norm")
    rows: list[list[Cell]] = [[label, p.stack, p.layer, p.point, p.norm] for label, _, found in measured for p in found]
    print(markdown_table(head, rows, left=4))
    write(args, figure, head, rows)
    return 0


def _draw_parts(panel: Any, wiring: str, found: list[PointInLayer]) -> None:
    """Draw a line for each layer, from its bottom to its top, where it is 1; what norms give is shaded."""
    points = list(dict.fromkeys(p.point for p in found))
    for row in {points.index(p.point) for p in found if p.is_norm}:
        panel.axhspan(row - 0.5, row + 0.5, color="0.9", linewidth=0)
    places = list(dict.fromkeys((p.stack, p.layer) for p in found))
    for (stack, layer), line in zip(places, plots.line_styles([wiring] * len(places)), strict=True):
        here = [p for p in found if (p.stack, p.layer) == (stack, layer)]
        heights = [points.index(p.point) for p in here]
        line |= {"marker": line["marker"] or ".", "markevery": None, "markersize": 3.5}
        panel.plot(
            [p.norm / (here[-1].norm or math.nan) for p in here], heights, **line, label=f"{stack} layer {layer}"
        )
    panel.set_yticks(range(len(points)), points)
    panel.set_xlim(left=0)


def _chosen(subject: ModelAndLoss, found: list[PointInLayer], at: str | None) -> list[PointInLayer]:
    depths = {p.stack: max(q.layer for q in found if q.stack == p.stack) for p in found}
    top = "decoder" if "decoder" in depths else "encoder"
    stack, _, numbers = (at or f"{top}:{depths[top]}").partition(":")
    layers = [int(n) if n.isdecimal() else 0 for n in numbers.split(",")]
    if stack not in depths or not all(1 <= n <= depths[stack] for n in layers):
        valid = " and ".join(f"{name}:1 to {name}:{depth}" for name, depth in depths.items())
        raise UserError(f"--at {at}: {subject.label} has no such layer; valid are {valid}")
    return [p for p in found if p.stack == stack and p.layer in layers]
