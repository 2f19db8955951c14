"""The graph of a layer as text and as a picture."""

from __future__ import annotations

import itertools
import string
from typing import Any, NamedTuple

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.trace import Graph, Node

FILL = {"sublayer": "#DCE9F4", "norm": "#F8E3B5", "module": "0.94", "operation": "0.94"}
SIGNS = ("+", "-", "×", "÷")
CIRCLE = 10
"""Diameter of a sum, in points."""
LANE = 0.28
"""Between two lines that pass beside boxes; all lengths are in rows."""
MARGIN = 0.2
INCHES = 0.4
"""Of a length of 1 across."""
CHARACTER = 0.064
"""Half the width of one in a box."""


def as_text(graph: Graph) -> list[str]:
    """Return a line per box; those on the gradient's way are marked."""
    names: dict[int, str] = {}
    taken = {node.label for node in graph.nodes if node.kind == "in"}
    every = [*string.ascii_lowercase[:22], *(f"a{i}" for i in range(1, 1000))]
    letters = (name for name in every if name not in taken)
    lines = []
    for node in graph.nodes:
        if node.kind == "in":
            names[node.number] = node.label
            continue
        arguments = [names[n] for n in node.inputs]
        if node.kind == "out":
            name, value = f"{node.label}'", arguments[0]
        else:
            name, value = next(letters), _value(node, arguments)
        names[node.number] = name
        lines.append(f"{'*' if node.number in graph.path else ' '} {name} = {value}")
    return lines


def _value(node: Node, arguments: list[str]) -> str:
    before, _, sign = node.label.rpartition(" ")
    if before and sign in SIGNS:
        return f"{before} {sign} {arguments[0]}"
    sign, _, factor = node.label.partition(" ")
    if sign in SIGNS:
        operands = [*arguments, factor] if factor else arguments
        # both may be the same
        return f" {sign} ".join(operands if len(operands) > 1 else operands * 2)
    return f"{node.label}({', '.join(arguments)})"


def width(graph: Graph) -> float:
    """Return the inches that a picture needs, so that labels fit into their boxes."""
    return 2 * INCHES * (_lanes(graph)[1] + MARGIN)


def draw(axes: Any, graph: Graph, title: str, below: str) -> None:
    """Draw boxes from the bottom to the top in the order in which they run.

    The gradient's way is coloured, and where it passes beside boxes it does so at their left.

    Args:
        below: what is written under the picture.
    """
    lines, reach = _lanes(graph)
    for line in lines:
        start, end = line.start, line.end
        look = {"color": plots.VERMILION if line.marked else "0.35", "linewidth": 1.6 if line.marked else 0.8}
        shrink = CIRCLE / 2 if end.kind == "sum" else 0
        if line.x is None:
            reach_up = 0.0 if end.kind == "sum" else 0.32
            _arrow(axes, [(0, start.number + 0.3), (0, end.number - reach_up)], look, shrink)
            continue
        side = -1 if line.marked else 1
        # in and out of a box at different heights, which tells them apart
        low, high = start.number + _offset(start), end.number - _offset(end)
        points = [(side * _half_width(start), low), (line.x, low), (line.x, high), (side * _half_width(end), high)]
        _arrow(axes, points, look, shrink)
    for node in graph.nodes:
        _draw_node(axes, node, node.number in graph.path)
    axes.set_xlim(-reach - MARGIN, reach + MARGIN)
    axes.set_ylim(-0.6, len(graph.nodes) - 0.4)
    axes.set_title(title, fontsize=8)
    axes.text(0.5, -0.01, below, ha="center", va="top", fontsize=6, transform=axes.transAxes)
    axes.set_axis_off()


class _Line(NamedTuple):
    """From one box to another: straight up, or beside those between them at ``x``."""

    start: Node
    end: Node
    marked: bool
    x: float | None


def _lanes(graph: Graph) -> tuple[list[_Line], float]:
    """Return all lines, and how far the outermost is from the middle."""
    on_way = set(itertools.pairwise(graph.path))
    widest = max(_half_width(node) for node in graph.nodes) + LANE
    reach = widest
    taken: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
    edges = [(graph.nodes[n], node) for node in graph.nodes for n in node.inputs]
    lines = []
    for start, end in sorted(edges, key=lambda edge: edge[1].number - edge[0].number):
        marked = (start.number, end.number) in on_way
        x = None
        if end.number != start.number + 1:
            lane = _free_lane(taken[marked], start.number, end.number)
            x = (-1 if marked else 1) * (widest + LANE * lane)
            reach = max(reach, abs(x))
        lines.append(_Line(start, end, marked, x))
    return lines, reach


def _half_width(node: Node) -> float:
    if node.kind in FILL:
        return max(1.25 if node.kind == "sublayer" else 0.75, 0.1 + CHARACTER * len(node.label))
    return 0.0 if node.kind == "sum" else 0.15 + 0.09 * len(node.label)


def _offset(node: Node) -> float:
    return 0.13 if node.kind in FILL else 0.0


def _free_lane(taken: list[tuple[int, int, int]], below: int, above: int) -> int:
    """Return the nearest that no other line uses there; lines from one box share theirs."""
    lane = 0
    while any(t == lane and low < above and below < high and low != below for t, low, high in taken):
        lane += 1
    taken.append((lane, below, above))
    return lane


def _draw_node(axes: Any, node: Node, marked: bool) -> None:
    colour = plots.VERMILION if marked else "0.2"
    edge: dict[str, Any] = {"linewidth": 1.2 if marked else 0.7, "edgecolor": colour}
    if node.kind == "sum":
        axes.scatter([0], [node.number], s=CIRCLE**2, facecolor="white", zorder=3, **edge)
    elif node.kind in FILL:
        from matplotlib.patches import Rectangle

        half = _half_width(node)
        corner = (-half, node.number - 0.32)
        axes.add_patch(Rectangle(corner, 2 * half, 0.64, facecolor=FILL[node.kind], zorder=3, **edge))
    text = f"{node.label}'" if node.kind == "out" else node.label
    slant = "italic" if node.kind in ("in", "out") else "normal"
    axes.text(0, node.number, text, ha="center", va="center_baseline", fontsize=6.5, fontstyle=slant, zorder=4)


def _arrow(axes: Any, points: list[tuple[float, float]], look: dict[str, Any], shrink: float) -> None:
    """Draw a line through points with a head at its end, which stops ``shrink`` points before the last."""
    axes.plot(*zip(*points[:-1], strict=True), solid_joinstyle="round", zorder=2, **look)
    options = {"arrowstyle": "-|>", "mutation_scale": 5, "shrinkA": 0, "shrinkB": shrink, **look}
    axes.annotate("", points[-1], points[-2], arrowprops=options, zorder=2)
