"""The scheme of a layer: where the boxes and lines of its traced wiring stand. The site and ``explain`` draw it.

Streams are lanes from the bottom to the top, sub-layers boxes at their right, norms bars.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn

from fairseq_residuals.lab.look.trace import Graph, easiest_way
from fairseq_residuals.wirings.core.stack import Stack

ROW, LANE, GAP = 34, 34, 16
"""Pixels between rows, between lanes, and between columns."""
ROUTER_FUNCTIONS = ("tanh", "sigmoid", "sinkhorn", "permute", "softmax")
"""Functions of equations that say what a router does."""
FUNCTIONS = {"rsqrt": "RMS", "tensordot": "W", "sum": "Σ", "concat": "join", "stack": "join"}
"""Names for functions of PyTorch."""
SILENT = ("linalg_vector_norm", "square", "+ ", "÷ ", "× ", "- ")
"""Beginnings of labels that a chain of operations leaves out: a root mean square and its constants."""


@dataclass
class Box:
    """A part of the scheme; the edges that lead to it, with the factor on each."""

    label: str
    kind: str
    """A kind of :class:`.Node`, or tie: several streams side by side."""
    inputs: list[tuple[int, str]]
    learned: bool = False
    lanes: list[str] = field(default_factory=list)
    x: float = 0
    y: float = 0
    half: float = 0
    """Half the width."""
    on_way: bool = False
    """Whether the gradient's easiest way passes it."""

    @property
    def high(self) -> float:
        """Half the height."""
        return {"sum": 9, "norm": 7, "tie": 1, "in": 9, "out": 9}.get(self.kind, 11)

    @property
    def name(self) -> str:
        """The text in the box."""
        if self.label == "matmul":
            return "mix" if self.lanes else "read"
        return f"{self.label}\N{PRIME}" if self.kind == "out" else self.label


@dataclass
class Line:
    """A line from one box to the next."""

    points: list[tuple[float, float]]
    on_way: bool
    """Whether it is a part of the gradient's easiest way."""
    factor: str
    """Text beside the line: what the tensor is multiplied by."""
    beside: tuple[float, float]
    """Left end of the text beside the line."""

    @property
    def learned(self) -> bool:
        """Whether the factor is a parameter."""
        return bool(re.search("[a-z]", self.factor))


@dataclass
class Scheme:
    """A drawing in pixels, y from the top to the bottom."""

    boxes: list[Box]
    lines: list[Line]
    """The gradient's easiest way is the last of them, above the others."""
    width: float
    height: float


def module_names(stack: Stack, number: int) -> dict[str, str]:
    """Return what a scheme of layer ``number`` (from 0) calls the wiring's modules: classes, and routers' functions."""
    variant = stack.wiring.at(number)[0]
    inside = ", ".join(f for f in ROUTER_FUNCTIONS if f"{f}(" in " ".join(variant.equations_of(variant.Config())))
    names = {}
    for path, module in [*variant.named_modules(), *stack[number].named_modules()]:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", type(module).__name__)
        if type(module) is not nn.Sequential:
            names[path.split(".")[-1]] = f"{words}: {inside}" if words.endswith("Router") and inside else words
    return names


def condense(graph: Graph, classes: dict[str, str]) -> dict[int, Box]:
    """Return the boxes of a graph: sums of sums are one, factors stand at edges, chains of operations are one box.

    Args:
        classes: the class of each module that the graph names.
    """
    boxes = {n.number: Box(n.label, n.kind, [(i, "") for i in n.inputs], n.kind == "module") for n in graph.nodes}
    for box in boxes.values():
        if box.kind == "sum" and box.label == "-" and len(box.inputs) == 2:
            box.label, box.inputs[1] = "+", (box.inputs[1][0], "-")
    for number, box in list(boxes.items()):
        first = box.inputs[0][0] if box.inputs else -1
        if box.kind == "operation" and box.label in ("stack", "concat") and len(box.inputs) == 1:
            _replace(boxes, number, [(first, "")])
        elif box.kind == "operation" and box.label == "stack":
            box.kind = "tie"
        elif box.kind == "module":
            box.label = classes.get(box.label.split(".")[0], box.label)
        elif box.kind == "operation" and re.match("[×÷] ", box.label) and len(box.inputs) == 1:
            users = _users(boxes, number)
            if len(users) == 1 and boxes[users[0]].kind == "sum":
                _replace(boxes, number, [(first, box.label.removeprefix("× "))])
            box.learned = bool(re.search("[a-z]", box.label))
        elif box.kind == "operation" and box.label == "×" and len(_users(boxes, first)) > 3:
            users = _users(boxes, number)
            if boxes[first].kind == "operation" and len(users) == 1 and boxes[users[0]].kind == "sum":
                _replace(boxes, number, box.inputs)
    for number, box in list(boxes.items()):
        users = _users(boxes, number)
        if len(users) != 1 or (number, "") not in boxes[users[0]].inputs:
            continue
        user = boxes[users[0]]
        if box.kind == user.kind == "sum":
            _replace(boxes, number, box.inputs)
        elif box.kind == user.kind == "operation" and len(box.inputs) == len(user.inputs) == 1:
            user.learned |= box.learned or bool(re.match("× [a-z]", box.label + user.label))
            user.label = f"{box.label} → {user.label}"
            _replace(boxes, number, box.inputs)
    for box in boxes.values():
        parts = [FUNCTIONS.get(part, part) for part in box.label.split(" → ") if not part.startswith(SILENT)]
        box.label = " → ".join(parts) or box.label
        if box.kind == "sum":
            box.inputs = list(dict.fromkeys(box.inputs))
            box.label = "Σ" if len(box.inputs) > 3 else box.label
    return boxes


def _users(boxes: dict[int, Box], number: int) -> list[int]:
    return [n for n, box in boxes.items() if any(i == number for i, _ in box.inputs)]


def _replace(boxes: dict[int, Box], number: int, by: list[tuple[int, str]]) -> None:
    """Remove a box; its edges lead to what used it."""
    del boxes[number]
    for box in boxes.values():
        parts = [(by if i == number else [(i, factor)]) for i, factor in box.inputs]
        box.inputs = [edge for part in parts for edge in part]


def scheme_of(graph: Graph, classes: dict[str, str]) -> Scheme:
    """Return the scheme of a layer.

    Args:
        classes: as :func:`module_names` returns them.
    """
    boxes = condense(graph, classes)
    ends = {k: {b.label: n for n, b in boxes.items() if b.kind == k} for k in ("in", "out")}
    through = ends["in"].keys() & ends["out"].keys()
    names = sorted(ends["in"] | ends["out"], key=lambda key: (key in through, key == "x", key))
    streams = sorted(key for key in names if re.fullmatch(r"x\d*", key) and (key == "x" or key in ends["out"]))
    others = [key for key in names if key not in streams]
    below = {n: (box.kind, [i for i, _ in box.inputs]) for n, box in boxes.items()}
    for key in [*streams, *others]:
        start, *end = (ends[kind][key] for kind in ("in", "out") if key in ends[kind])
        for n in easiest_way(below, {start}, end) or [start, *end]:
            if boxes[n].kind != "sublayer" and (key in streams or not boxes[n].lanes):
                boxes[n].lanes.append(key)
    way = [n for n in graph.path if n in boxes]
    for n in way:
        boxes[n].on_way = True
    lines, width = _route(boxes, set(pairwise(way)), _place(boxes, [*others, *streams]))
    height = max(box.y for box in boxes.values()) + ROW / 2
    return Scheme(list(boxes.values()), sorted(lines, key=lambda line: line.on_way), width, height)


def _place(boxes: dict[int, Box], names: list[str]) -> float:
    """Set the places of all boxes; return where the channels right of them begin."""
    for box in boxes.values():
        text = 3.6 * len(box.label) + 8
        box.half = {"sum": 9, "tie": 0, "in": text, "out": text, "norm": max(16, text)}.get(box.kind, max(14, text))
    columns, x = {}, 6.0
    for name in [*names, "branch", "learned"]:
        own = [b for b in boxes.values() if (b.lanes == [name] if name in names else _column(b) == name)]
        half = max([b.half for b in own], default=0 if name not in names else 8)
        columns[name] = x + half if own else x
        x += max(2 * half + GAP, LANE if name in names else 0) if own else 0
    inner = [b for b in boxes.values() if b.kind not in ("in", "out")]
    for box in boxes.values():
        at = [columns[lane] for lane in box.lanes] or [columns[_column(box)]]
        box.x = (min(at) + max(at)) / 2
        box.half = max(box.half, (max(at) - min(at)) / 2 + (12 if len(at) > 1 else 0))
    for i, box in enumerate(inner):
        box.y = ROW * (len(inner) - i + 0.5)
    for box in boxes.values():
        if box.kind in ("in", "out"):
            box.y = ROW * (0.5 if box.kind == "out" else len(inner) + 1.5)
    return x


def _column(box: Box) -> str:
    return "" if box.lanes else "learned" if box.kind == "module" or "→" in box.label else "branch"


def _route(boxes: dict[int, Box], way: set[tuple[int, int]], width: float) -> tuple[list[Line], float]:
    """Return the lines of all edges, and the width with the channels for those that pass beside boxes."""
    lines, channels = [], [0.0]
    for to, end in boxes.items():
        below = [e for e in end.inputs if not (set(boxes[e[0]].lanes) & set(end.lanes))]
        for number, factor in end.inputs:
            start, on_way = boxes[number], (number, to) in way
            shared = [lane for lane in start.lanes if lane in end.lanes]
            if shared and not _blocked(boxes, start, end, start.x):
                between = 2 * (start.half - 12) / max(len(shared) - 1, 1)
                several = [start.x - start.half + 12 + between * i for i in range(len(shared))]
                xs = [start.x] if len(start.lanes) == 1 else [end.x] if len(end.lanes) == 1 else several
                beside = (xs[0] + 4, (start.y + end.y) / 2 if end.kind != "sum" else end.y + 19)
                for i, x in enumerate(xs):
                    points = [(x, start.y - start.high), (x, end.y + end.high)]
                    lines.append(Line(points, on_way, "" if i else factor, beside))
                continue
            into_side = end.kind == "sum" or (bool(end.lanes) and end.kind != "out")
            level = end.y if into_side else end.y + end.high + 7
            x = start.x + (start.half if len(start.lanes) > 1 or start.kind == "tie" else 0)
            points = [(x, start.y - (start.high if x == start.x else 0))]
            if _blocked(boxes, start, end, x):
                out = start.y - start.high - 5
                lane = next(c for c in range(99) if c == len(channels) or channels[c] >= start.y)
                channels[lane : lane + 1] = [end.y]
                points += [(x, out), (width + 10 * lane, out), (width + 10 * lane, level)]
            else:
                points.append((x, level))
            if into_side:
                side = 1 if points[-1][0] > end.x else -1
                points.append((end.x + side * end.half, level))
            else:
                spread = 0 if len(below) < 2 else 10 * (below.index((number, factor)) - (len(below) - 1) / 2)
                points += [(end.x + spread, level), (end.x + spread, end.y + end.high)]
            beside = (min(points[-2][0], points[-1][0]) + 4, level - 4)
            lines.append(Line(points, on_way, factor, beside))
    return lines, width + 10 * len(channels) + 6


def _blocked(boxes: dict[int, Box], start: Box, end: Box, x: float) -> bool:
    between = (b for b in boxes.values() if end.y < b.y < start.y)
    return any(abs(b.x - x) < b.half + 2 for b in between)
