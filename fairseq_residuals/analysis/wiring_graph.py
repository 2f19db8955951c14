"""The graph of a layer's wiring: boxes, what leads to an output, and the easiest way for a gradient."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

COSTS = {"sublayer": 10_000, "norm": 100, "module": 2}
"""Of a gradient's way through a box; of anything else 1. The way with the fewest sub-layers, then norms, is told."""


@dataclass(frozen=True)
class Node:
    """A box of the diagram."""

    number: int
    label: str
    kind: str
    """in, out, sublayer, norm, sum, module (any other, such as gates), operation, or stop (no gradient passes it)."""
    inputs: tuple[int, ...]


@dataclass
class Graph:
    """Boxes in the order in which they are computed."""

    nodes: list[Node] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    """Numbers of the boxes on the gradient's easiest way, from an input to an output."""

    def add(self, label: str, kind: str, inputs: Iterable[int]) -> int:
        self.nodes.append(Node(len(self.nodes), label, kind, tuple(dict.fromkeys(inputs))))
        return len(self.nodes) - 1

    def crossed(self, kind: str) -> int:
        """Return how many boxes of a kind are on the gradient's way."""
        return sum(self.nodes[n].kind == kind for n in self.path)


def without_unused(graph: Graph) -> Graph:
    """Return only what leads to an output, numbered anew, with the gradient's way."""
    needed: set[int] = set()
    waiting = [node.number for node in graph.nodes if node.kind == "out"]
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += graph.nodes[number].inputs
    clean, new = Graph(), {}
    for node in graph.nodes:
        if node.number in needed and node.kind != "in":
            # what comes from below stands where it is first used
            for n in (n for n in node.inputs if n not in new):
                new[n] = clean.add(graph.nodes[n].label, "in", ())
            new[node.number] = clean.add(node.label, node.kind, [new[n] for n in node.inputs])
    clean.path = _easiest_way(clean)
    return clean


def _easiest_way(graph: Graph) -> list[int]:
    above: dict[int, list[int]] = {}
    for node in graph.nodes:
        for number in node.inputs:
            above.setdefault(number, []).append(node.number)
    queue: list[tuple[int, int, tuple[int, ...]]] = [
        (0, node.number, (node.number,)) for node in graph.nodes if node.kind == "in"
    ]
    heapq.heapify(queue)
    done: set[int] = set()
    while queue:
        cost, number, way = heapq.heappop(queue)
        if graph.nodes[number].kind == "out":
            return list(way)
        if number not in done:
            done.add(number)
            for n in (n for n in above.get(number, ()) if graph.nodes[n].kind != "stop"):
                heapq.heappush(queue, (cost + COSTS.get(graph.nodes[n].kind, 1), n, (*way, n)))
    return []
