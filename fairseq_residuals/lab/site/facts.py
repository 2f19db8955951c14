"""What a page says of a wiring: from the registry, its source, its traced layers, and the committed results."""

from __future__ import annotations

import csv
import functools
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from fairseq_residuals.lab.look.list_wirings import evidence, own_options, wiring_parameters
from fairseq_residuals.lab.look.trace import Graph, trace_layer
from fairseq_residuals.lab.site import scheme
from fairseq_residuals.lab.site.charts import Series, chart
from fairseq_residuals.lab.site.mathml import typeset
from fairseq_residuals.lab.utils.checkout import RESULTS, require_checkout
from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import options_of, show_value
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS, list_variants
from fairseq_residuals.wirings.core.stack import Stack

DEPTH = 6
"""Layers of the stacks whose layers are drawn."""
MOST_SCHEMES = 3
FAMILY = Path(__file__).with_name("family.csv")
RIVALS = ("post_ln", "pre_ln")
"""The wirings beside whose curves each other curve is drawn."""
ROUTER_FUNCTIONS = ("tanh", "sigmoid", "sinkhorn", "permute", "softmax")
COMPARED = {"activations": "activations", "gradients": "gradients", "generation": "generated sentences"}
COMPARED |= {"initialisation": "initial values"}
"""What can be compared, by its word in :attr:`.Variant.verified`."""


def family(path: Path = FAMILY) -> dict[str, list[str]]:
    """Return the wirings that each wiring came from.

    Raises:
        UserError: a wiring has no row, or a row names what is no wiring.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row["wiring"]: row["came_from"].split() for row in csv.DictReader(file)}
    if missing := sorted(set(VARIANTS) - set(rows)):
        raise UserError(f"{path} has no row for {', '.join(missing)}: add what each came from, its closest first")
    if unknown := sorted({name for row in rows.items() for name in (row[0], *row[1])} - set(VARIANTS)):
        raise UserError(f"{path} names {', '.join(unknown)}; `fairseq-residuals list` prints the wirings")
    return {name: rows[name] for name in list_variants()}


@dataclass(frozen=True)
class Results:
    """What was measured, as the files under results/ have it."""

    trained: list[dict[str, str]]
    """Runs of the small translation task at four learning rates."""
    curves: list[dict[str, str]]
    """Validation losses of 18 + 18 layers on English to Italian."""
    gradients: list[dict[str, str]]
    """Norms of gradients by layer before training."""
    costs: list[dict[str, str]]
    """Speed and memory of training 18 + 18 layers on a CPU."""

    @classmethod
    def read(cls, folder: Path = RESULTS) -> Results:
        """Read all tables.

        Raises:
            UserError: one is missing, as in an installed package.
        """
        names = (
            "small/variants-18l",
            "debian/translation-18l-128",
            "gradients-18l-512",
            "bench/costs-18l-cpu-2026-11-21",
        )
        tables = []
        for name in names:
            require_checkout(folder / f"{name}.csv")
            with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
                tables.append(list(csv.DictReader(file)))
        return cls(*tables)


def traced(name: str) -> tuple[Stack, list[tuple[int, Graph]]]:
    """Return a stack of a wiring without storage, and its layers of different structure above the first.

    A language model is one stack; a wiring that has no meaning there is traced in the encoder of a pair.
    """
    alone = not VARIANTS[name].refusal(alone=True, topmost=True, depth=DEPTH)
    build = functools.partial(build_stack, name, depth=DEPTH, dim=16, heads=2, ffn_dim=32)
    with torch.device("meta"):
        stack = build(task="language_model") if alone else build(other_depth=DEPTH)
    different: dict[frozenset[tuple[str, ...]], tuple[int, Graph]] = {}
    for number in range(1, DEPTH):
        graph = trace_layer(stack, number)
        labels = [re.sub(r"[\d.]+", "", node.label) for node in graph.nodes]
        edges = {(labels[n], node.kind, labels[node.number]) for node in graph.nodes for n in node.inputs}
        different.setdefault(frozenset(edges), (number + 1, graph))
    return stack, list(different.values())[:MOST_SCHEMES]


def page(name: str, results: Results, parents: Mapping[str, list[str]]) -> dict[str, object]:
    """Return the fields of a wiring's page.

    Raises:
        UserError: the module of the wiring has no description.
    """
    variant = VARIANTS[name]
    module = sys.modules[variant.__module__]
    first, *paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    if not first:
        raise UserError(f"{module.__name__} has no docstring, whose first line the page of {name} begins with")
    stack, layers = traced(name)
    author, _, work = variant.paper.partition(", ")
    equations = variant.equations_of(variant.Config())
    return {
        "name": name,
        "title": variant.title,
        "year": variant.year,
        "paper": variant.paper,
        "sentence": first.replace("\n", " "),
        "description": [p for p in paragraphs if not re.search("[─│►]", p) and p != "::"],
        "schemes": _schemes(name, stack, layers),
        "passes": layers[0][1].crossed("norm"),
        "streams": len({n.label for n in layers[0][1].nodes if n.kind == "in"}),
        "norm_after_sum": layers[0][1].crossed("norm") > 0,
        "equations": list(equations),
        "typeset": "".join(map(typeset, equations)),
        "symbols": {k: v for k, v in variant.symbols.items() if re.search(rf"\b{k}\b", " ".join(equations))},
        "code": inspect.getsource(type(stack[1].self_attn_connection)),
        "module_source": inspect.getsource(module),
        "module": module.__name__,
        "own": own_options(variant),
        "options": [(o.name, show_value(o.default), o.help, o.describe()) for o in options_of(variant.Config).values()],
        "parameters": wiring_parameters(variant) - wiring_parameters(VARIANTS["post_ln"]),
        "language_model": stack.shape.stack == "decoder",
        "evidence": evidence(variant),
        "compared": {label: word in variant.verified.partition(";")[0] for word, label in COMPARED.items()},
        "verified": variant.verified,
        "source": variant.code,
        "ships_in": variant.ships_in,
        "starts_as": variant.starts_as,
        "choice": variant.extension,
        "came_from": parents[name],
        "led_to": [child for child, above in parents.items() if name in above],
        "bibtex": bibtex(name, author, work, variant),
        **_measured(name, results),
    }


def bibtex(name: str, author: str, work: str, variant: type[Variant]) -> str:
    """Return an entry with what the registry knows of a paper."""
    people = re.sub(r" et al\.", " and others", author.removesuffix(f" {variant.year}"))
    key = re.sub(r"\W", "", people.split()[0]).lower()
    fields = {"title": f"{{{work or variant.title}}}", "author": f"{{{people}}}", "year": f"{{{variant.year}}}"}
    return "\n".join([f"@misc{{{key}{variant.year}{name},", *(f"  {k} = {v}," for k, v in fields.items()), "}"])


def _schemes(name: str, stack: Stack, layers: list[tuple[int, Graph]]) -> list[tuple[str, str]]:
    """Return pairs of a caption and the scheme of a layer."""
    equations = " ".join(VARIANTS[name].equations_of(VARIANTS[name].Config()))
    inside = ", ".join(f for f in ROUTER_FUNCTIONS if f"{f}(" in equations)
    classes = {}
    for path, module in [*stack.wiring.named_modules(), *stack[1].named_modules()]:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", type(module).__name__)
        routes = words.endswith("Router") and inside
        if type(module) is not nn.Sequential:
            classes[path.split(".")[-1]] = f"{words}: {inside}" if routes else words
    where = "decoder alone" if stack.shape.stack == "decoder" else "encoder"
    captions = [f"Layer {number} of {DEPTH}, {where}" for number, _ in layers]
    drawn = (scheme.draw(graph, VARIANTS[name].title, classes) for _, graph in layers)
    return list(zip(captions, drawn, strict=True))


def _measured(name: str, results: Results) -> dict[str, object]:
    """Return charts and costs; what nobody measured is empty."""
    shown = [name, *(rival for rival in RIVALS if rival != name)]

    def lines(rows: list[dict[str, str]], key: str, x: str, y: str, **where: str) -> dict[str, Series]:
        chosen = [row for row in rows if all(row[k] == v for k, v in where.items())]
        points = {n: [(float(row[x]), float(row[y])) for row in chosen if row[key] == n and row[y]] for n in shown}
        return {n: sorted(line) for n, line in points.items() if line}

    charts = []
    curves = lines(results.curves, "wiring", "update", "nll_loss", subset="valid")
    if name in curves:
        charts.append(chart("Validation loss, English to Italian, 18 + 18 layers", "update", "bits per token", curves))
    rates = lines(results.trained, "row", "lr", "valid_loss", seed="1")
    if name in rates:
        charts.append(chart("Validation loss after 400 updates, by learning rate", "learning rate", "bits", rates))
    for stack in ("decoder", "encoder"):
        norms = lines(results.gradients, "wiring", "layer", "gradient_norm", stack=stack)
        if name in norms:
            charts.append(chart(f"Gradient before training, {stack}", "layer", "norm", norms, log=True))
    costs = {row["contestant"].partition("+")[0]: row for row in results.costs}
    own, base = costs.get(name), costs["post_ln"]
    speed = f"{float(own['tokens/s']) / float(base['tokens/s']):.2f}" if own else ""
    memory = f"{float(own['peak MiB']) / float(base['peak MiB']):.2f}" if own else ""
    return {"charts": charts, "trained": name in rates, "speed": speed, "memory": memory}
