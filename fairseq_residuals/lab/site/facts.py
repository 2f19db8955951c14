"""Facts of a wiring for its page: from the registry, its source, its traced layers, and the committed results.

Also where the lines of a chart and the names of the family tree stand; templates/drawings.html draws them.
"""

from __future__ import annotations

import csv
import functools
import inspect
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_residuals.lab.look.list_wirings import EQUATIONS, evidence, own_options
from fairseq_residuals.lab.look.scheme import module_names, scheme_of
from fairseq_residuals.lab.look.trace import Graph, trace_layers
from fairseq_residuals.lab.utils.checkout import RESULTS
from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.base import Connection, Variant
from fairseq_residuals.wirings.core.config import options_of, show_value
from fairseq_residuals.wirings.core.registry import VARIANTS, list_variants
from fairseq_residuals.wirings.core.stack import Stack

DEPTH = 8
"""Layers of the stacks whose layers are drawn; of Mix-LN, Post-LN and Pre-LN ones above the first."""
MOST_SCHEMES = 3
VARIANTS_MODULES = "fairseq_residuals.wirings.variants."
FAMILY = Path(__file__).with_name("family.csv")
RIVALS = ("post_ln", "pre_ln")
"""The wirings beside whose curves each other curve is drawn."""
TABLES = {
    "rates": "small/variants-18l.csv",
    "curves": "debian/translation-18l-128.csv",
    "gradients": "gradients-18l-512.csv",
    "costs": "bench/costs-18l-cpu-2026-11-21.csv",
    "works": "library/what_works.csv",
}
"""Files of results: losses of a small task and of English to Italian, gradients, costs, and what of PyTorch works."""
WIDTH, HEIGHT, LEFT, BELOW, RIGHT, TOP = 340, 220, 46, 36, 8, 14
"""Pixels of a chart and of the margins in it."""
YEAR, ROW = 90, 21
"""Pixels between two years and two rows of the family tree."""
Results = Mapping[str, list[dict[str, str]]]
Points = Sequence[tuple[float, float]]
BY_UPDATE, BY_RATE = ("wiring", "update", "nll_loss"), ("row", "lr", "valid_loss")
BY_LAYER = ("wiring", "layer", "gradient_norm")
"""Columns of the wiring, of x and of y."""
CHARTS = (
    ("curves", BY_UPDATE, ("subset", "valid"), "bits per token", "Validation loss, English to Italian, 18 + 18 layers"),
    ("rates", BY_RATE, ("seed", "1"), "bits", "Validation loss after 400 updates, by learning rate"),
    ("gradients", BY_LAYER, ("stack", "decoder"), "norm", "Gradient before training, decoder"),
    ("gradients", BY_LAYER, ("stack", "encoder"), "norm", "Gradient before training, encoder"),
)
"""Table, columns, which rows, what y is, and the title."""
AS_REGISTERED = ("name", "title", "year", "paper", "verified", "code", "ships_in", "starts_as", "extension")
COMPARED = {"activations": "activations", "gradients": "gradients", "generation": "generated sentences"}
COMPARED |= {"initialisation": "initial values"}
"""Labels of what can be compared, by its word in :attr:`.Variant.verified`."""


def family() -> dict[str, list[str]]:
    """Return the wirings that each wiring of the package came from."""
    rows = {row["wiring"]: row["came_from"].split() for row in _rows(FAMILY)}
    return {name: rows[name] for name in list_variants() if name in rows}


def read_results() -> Results:
    """Return the tables of :data:`TABLES`, and the runs of all comparisons."""
    runs = [row for path in sorted(RESULTS.glob("compare/*/runs.csv")) for row in _rows(path)]
    return {name: _rows(RESULTS / path) for name, path in TABLES.items()} | {"compare": runs}


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


@functools.cache
def traced(name: str) -> tuple[Stack, list[tuple[int, Graph]]]:
    """Return a stack of a wiring, and its layers of different structure above the first.

    A language model is one stack; a wiring that has no meaning there is traced in the encoder of a pair.
    """
    alone = not VARIANTS[name].refusal(alone=True, topmost=True, depth=DEPTH)
    build = functools.partial(build_stack, name, depth=DEPTH, dim=16, heads=2, ffn_dim=32)
    stack = build(task="language_model") if alone else build(other_depth=DEPTH)
    different: dict[frozenset[tuple[str, ...]], tuple[int, Graph]] = {}
    for number, graph in list(enumerate(trace_layers(stack), start=1))[1:]:  # what comes from below may be missing
        labels = [re.sub(r"[\d.]+", "", node.label) for node in graph.nodes]
        edges = {(labels[n], node.kind, labels[node.number]) for node in graph.nodes for n in node.inputs}
        different.setdefault(frozenset(edges), (number, graph))
    return stack, list(different.values())[:MOST_SCHEMES]


@functools.cache
def parameters(name: str) -> int:
    """Return how many parameters 6 + 6 layers of 512 channels have, embeddings aside."""
    build = functools.partial(build_stack, name, depth=6, other_depth=6, dim=512, heads=8, ffn_dim=2048)
    with torch.device("meta"):
        return sum(p.numel() for stack in (build(), build(task="decoder")) for p in stack.parameters())


def page(name: str, results: Results, parents: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the fields of a wiring's page.

    Raises:
        UserError: a field is empty that no page can do without.
    """
    variant = VARIANTS[name]
    module = sys.modules[variant.__module__]
    first, *paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    stack, layers = traced(name)
    equations = variant.equations_of(variant.Config())
    compared = variant.verified.partition(";")[0] if evidence(variant) != EQUATIONS else ""
    where = "decoder alone" if stack.shape.stack == "decoder" else "encoder"
    return {
        **{field: getattr(variant, field) for field in AS_REGISTERED},
        "sentence": first.replace("\n", " "),
        "description": [p for p in paragraphs if not re.search("[─│►]", p) and p != "::"],
        "schemes": [
            (f"Layer {n} of {DEPTH}, {where}", scheme_of(graph, module_names(stack, n - 1)), graph.crossed("norm"))
            for n, graph in layers
        ],
        "passes": layers[0][1].crossed("norm"),
        "streams": len({n.label for n in layers[0][1].nodes if n.kind == "in"}),
        "equations": list(equations),
        "symbols": {k: v for k, v in variant.symbols.items() if re.search(rf"\b{k}\b", " ".join(equations))},
        "listing": _listing(stack, module.__name__),
        "module_source": inspect.getsource(module),
        "module": module.__name__,
        "own": own_options(variant),
        "options": [(o.name, show_value(o.default), o.help, o.describe()) for o in options_of(variant.Config).values()],
        "parameters": parameters(name) - parameters("post_ln"),
        "language_model": stack.shape.stack == "decoder",
        "evidence": evidence(variant),
        "compared": {label: word in compared for word, label in COMPARED.items()},
        "came_from": parents[name],
        "led_to": [child for child, above in parents.items() if name in above],
        "bibtex": bibtex(variant),
        **_measured(name, results),
    }


def _listing(stack: Stack, module: str) -> str:
    """Return the classes of connections, those of papers that they derive from, and what is in them of the own module.

    Where none is of the own module, what the wiring does is in its own class, and in those that this derives from.
    """
    connections = [part for part in stack.modules() if isinstance(part, Connection)]
    derived = [c for own in connections for c in type(own).__mro__ if c.__module__.startswith(VARIANTS_MODULES)]
    inside = [type(part) for own in connections for part in own.modules() if type(part).__module__ == module]
    classes = dict.fromkeys([*derived, *inside])
    if module not in {c.__module__ for c in classes}:
        classes |= dict.fromkeys(c for c in reversed(type(stack.wiring).__mro__) if c.__module__ == module)
    return "\n\n".join(map(inspect.getsource, classes))


def bibtex(variant: type[Variant]) -> str:
    """Return an entry with what the registry knows of a paper."""
    author, _, work = variant.paper.partition(", ")
    people = author.removesuffix(f" {variant.year}").replace(" et al.", " and others")
    named = people if " and " in people else f"{{{people}}}"  # a team has no first name
    key = re.sub(r"\W", "", people.split()[0]).lower() + f"{variant.year}{variant.name}"
    fields = f"  title = {{{work or variant.title}}},\n  author = {{{named}}},\n  year = {{{variant.year}}},"
    return f"@misc{{{key},\n{fields}\n}}"


def _measured(name: str, results: Results) -> dict[str, Any]:
    """Return charts, titles of the charts that nobody measured, costs, and what of PyTorch works."""
    shown = [name, *(rival for rival in RIVALS if rival != name)]
    charts, unmeasured = [], []
    for table, (key, x, y), (column, value), up, title in CHARTS:
        rows = [row for row in results[table] if row[column] == value and row[y]]
        lines = {n: sorted((float(row[x]), float(row[y])) for row in rows if row[key] == n) for n in shown}
        if lines[name]:
            lines = {n: line for n, line in lines.items() if line}
            charts.append(chart(title, {"lr": "learning rate"}.get(x, x), up, lines, log=table == "gradients"))
        else:
            unmeasured.append(title)
    costs = {row["contestant"].partition("+")[0]: row for row in results["costs"]}
    own, base = costs.get(name), costs["post_ln"]
    speed, memory = (f"{float(own[c]) / float(base[c]):.2f}" if own else "" for c in ("tokens/s", "peak MiB"))
    works = next((dict(row) for row in results["works"] if row["wiring"] == name), {})
    refused = works.pop("rewire, keep", "")
    start = "keep" if not refused else "paper" if 'start="paper"' in refused else ""
    return {
        "charts": charts,
        "unmeasured": unmeasured,
        "trained": name in {*(row["row"] for row in results["rates"]), *(row["entry"] for row in results["compare"])},
        "speed": speed,
        "memory": memory,
        "works": {check: reason for check, reason in works.items() if check != "wiring"},
        "rewired": start,
        "refused": "" if start else refused,
    }


def chart(title: str, across: str, up: str, series: Mapping[str, Points], *, log: bool = False) -> dict[str, Any]:
    """Return lines over common axes, and where the axes have which numbers, in pixels.

    Args:
        across, up: what the axes show.
        series: points (x, y) by label.
        log: the axis that goes up is logarithmic: its ticks are exponents, and what is not positive is left out.
    """
    scale = math.log10 if log else float
    lines = {label: [(x, scale(y)) for x, y in points if not log or y > 0] for label, points in series.items()}
    xs, ys = zip(*(point for line in lines.values() for point in line), strict=True)
    left, right = min(xs), max(xs)
    low, high = (math.floor(min(ys)), math.ceil(max(ys))) if log else (min(*ys, 0.0), max(ys) * 1.05)
    ticks = list(range(low, high + 1)) if log else [low + (high - low) * i / 4 for i in range(5)]

    def place(x: float, y: float) -> tuple[float, float]:
        share = (x - left) / ((right - left) or 1), (y - low) / ((high - low) or 1)
        return LEFT + share[0] * (WIDTH - LEFT - RIGHT), HEIGHT - BELOW - share[1] * (HEIGHT - BELOW - TOP)

    return {"title": title, "across": across, "up": up, "log": log} | {
        "x_ticks": [(place(x, low)[0], x) for x in (left, (left + right) / 2, right)],
        "y_ticks": [(place(left, y)[1], y) for y in ticks],
        "lines": {label: [place(*point) for point in line] for label, line in lines.items()},
    }


def tree(parents: Mapping[str, Sequence[str]], years: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return where each wiring stands, from the top to the bottom: right of and below the first that it came from."""
    order: list[str] = []

    def visit(name: str) -> None:
        order.append(name)
        children = (child for child in parents if parents[child][:1] == [name])
        for child in sorted(children, key=lambda n: (years[n], n)):
            visit(child)

    for root in (name for name in parents if not parents[name]):
        visit(root)
    return {name: (30 + YEAR * (years[name] - min(years.values())), 40 + ROW * i) for i, name in enumerate(order)}
