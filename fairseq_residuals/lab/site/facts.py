"""What a page says of a wiring: from the registry, its source, its traced layers, and the committed results."""

from __future__ import annotations

import csv
import functools
import inspect
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_residuals.lab.look.list_wirings import evidence, own_options, wiring_parameters
from fairseq_residuals.lab.look.scheme import module_names, scheme_of
from fairseq_residuals.lab.look.trace import Graph, trace_layers
from fairseq_residuals.lab.site.charts import chart
from fairseq_residuals.lab.site.mathml import typeset
from fairseq_residuals.lab.utils.checkout import RESULTS, require_checkout
from fairseq_residuals.wirings.build import build_stack
from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import options_of, show_value
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS, list_variants
from fairseq_residuals.wirings.core.stack import Stack
from fairseq_residuals.wirings.rewire.rewire import rewire

DEPTH = 6
"""Layers of the stacks whose layers are drawn."""
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
}
"""What was measured: the small translation task at four learning rates, English to Italian, gradients before training,
and speed and memory of training on a CPU."""
Results = Mapping[str, list[dict[str, str]]]
CHARTS = (
    ("curves", "Validation loss, English to Italian, 18 + 18 layers", {"subset": "valid"}),
    ("rates", "Validation loss after 400 updates, by learning rate", {"seed": "1"}),
    ("gradients", "Gradient before training, decoder", {"stack": "decoder"}),
    ("gradients", "Gradient before training, encoder", {"stack": "encoder"}),
)
"""Table, title, and which rows of the table."""
AXES = {
    "curves": ("wiring", "update", "nll_loss", "bits per token"),
    "rates": ("row", "lr", "valid_loss", "bits"),
    "gradients": ("wiring", "layer", "gradient_norm", "norm"),
}
"""By table: columns of the wiring, of x and of y, and what y is."""
MAY_BE_EMPTY = (
    *("description", "passes", "norm_after_sum", "symbols", "own", "parameters", "language_model", "source", "choice"),
    *("ships_in", "starts_as", "came_from", "led_to", "charts", "unmeasured", "trained", "speed", "memory"),
    *("rewired", "refused"),
)
"""Fields of a page for whose lack the page has words."""
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


def read_results(folder: Path = RESULTS) -> Results:
    """Return the tables of :data:`TABLES`.

    Raises:
        UserError: one is missing, as in an installed package.
    """
    tables = {}
    for name, path in TABLES.items():
        require_checkout(folder / path)
        with (folder / path).open(encoding="utf-8", newline="") as file:
            tables[name] = list(csv.DictReader(file))
    return tables


@functools.cache
def traced(name: str) -> tuple[Stack, list[tuple[int, Graph]]]:
    """Return a stack of a wiring without storage, and its layers of different structure above the first.

    A language model is one stack; a wiring that has no meaning there is traced in the encoder of a pair.
    """
    alone = not VARIANTS[name].refusal(alone=True, topmost=True, depth=DEPTH)
    build = functools.partial(build_stack, name, depth=DEPTH, dim=16, heads=2, ffn_dim=32)
    with torch.device("meta"):
        stack = build(task="language_model") if alone else build(other_depth=DEPTH)
    different: dict[frozenset[tuple[str, ...]], tuple[int, Graph]] = {}
    for number, graph in enumerate(trace_layers(stack), start=1):
        if number == 1:  # what comes from below may be missing
            continue
        labels = [re.sub(r"[\d.]+", "", node.label) for node in graph.nodes]
        edges = {(labels[n], node.kind, labels[node.number]) for node in graph.nodes for n in node.inputs}
        different.setdefault(frozenset(edges), (number, graph))
    return stack, list(different.values())[:MOST_SCHEMES]


def page(name: str, results: Results, parents: Mapping[str, list[str]]) -> dict[str, object]:
    """Return the fields of a wiring's page.

    Raises:
        UserError: a field is empty that no page can do without.
    """
    variant = VARIANTS[name]
    module = sys.modules[variant.__module__]
    first, *paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    stack, layers = traced(name)
    author, _, work = variant.paper.partition(", ")
    equations = variant.equations_of(variant.Config())
    names = module_names(variant, stack)
    where = "decoder alone" if stack.shape.stack == "decoder" else "encoder"
    fields: dict[str, object] = {
        "name": name,
        "title": variant.title,
        "year": variant.year,
        "paper": variant.paper,
        "sentence": first.replace("\n", " "),
        "description": [p for p in paragraphs if not re.search("[─│►]", p) and p != "::"],
        "schemes": [(f"Layer {n} of {DEPTH}, {where}", scheme_of(graph, names)) for n, graph in layers],
        "passes": layers[0][1].crossed("norm"),
        "streams": len({n.label for n in layers[0][1].nodes if n.kind == "in"}),
        "norm_after_sum": layers[0][1].crossed("norm") > 0,
        "equations": list(equations),
        "typeset": "".join(map(typeset, equations)),
        "symbols": {k: v for k, v in variant.symbols.items() if re.search(rf"\b{k}\b", " ".join(equations))},
        "code": _code(stack[1].self_attn_connection, module.__name__),
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
        **rewired(name),
    }
    if missing := [field for field, value in fields.items() if not value and field not in MAY_BE_EMPTY]:
        raise UserError(f"the page of {name} has no {', '.join(missing)}: see {module.__name__}")
    return fields


def _code(connection: Any, module: str) -> str:
    """Return the class of a connection, those of papers that it derives from, and what is in it of the own module."""
    derived = [c for c in type(connection).__mro__ if c.__module__.startswith(VARIANTS_MODULES)]
    inside = [type(part) for part in connection.modules()]
    classes = dict.fromkeys([type(connection), *derived, *(c for c in inside if c.__module__ == module)])
    return "\n\n".join(map(inspect.getsource, classes))


def bibtex(name: str, author: str, work: str, variant: type[Variant]) -> str:
    """Return an entry with what the registry knows of a paper."""
    people = re.sub(r" et al\.", " and others", author.removesuffix(f" {variant.year}"))
    key = re.sub(r"\W", "", people.split()[0]).lower()
    fields = {"title": f"{{{work or variant.title}}}", "author": f"{{{people}}}", "year": f"{{{variant.year}}}"}
    return "\n".join([f"@misc{{{key}{variant.year}{name},", *(f"  {k} = {v}," for k, v in fields.items()), "}"])


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(self.q_proj(x) + self.k_proj(x) + self.v_proj(x))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """With the names of Llama's."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(16), nn.LayerNorm(16)
        self.self_attn, self.mlp = _Attention(), nn.Sequential(OrderedDict(down_proj=nn.Linear(16, 16)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(_Layer() for _ in range(4)), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)  # type: ignore[no-any-return]


def rewired(name: str) -> dict[str, str]:
    """Return how ``rewire`` starts a wiring in a Pre-LN model, or with what words it refuses it."""
    refused = ""
    for start in ("keep", "paper"):
        try:
            rewire(_Model().eval(), name, start=start, batch=torch.linspace(-1, 1, 96).view(2, 3, 16))  # type: ignore[arg-type]
        except UserError as error:
            refused = str(error)
        else:
            return {"rewired": start, "refused": ""}
    return {"rewired": "", "refused": refused}


def _measured(name: str, results: Results) -> dict[str, object]:
    """Return charts, titles of the charts that nobody measured, and costs."""
    shown = [name, *(rival for rival in RIVALS if rival != name)]
    charts, unmeasured = [], []
    for table, title, where in CHARTS:
        key, x, y, up = AXES[table]
        rows = [row for row in results[table] if row[y] and all(row[k] == v for k, v in where.items())]
        lines = {n: sorted((float(row[x]), float(row[y])) for row in rows if row[key] == n) for n in shown}
        lines = {n: line for n, line in lines.items() if line}
        if name in lines:
            charts.append(chart(title, {"lr": "learning rate"}.get(x, x), up, lines, log=table == "gradients"))
        else:
            unmeasured.append(title)
    costs = {row["contestant"].partition("+")[0]: row for row in results["costs"]}
    own, base = costs.get(name), costs["post_ln"]
    speed, memory = (f"{float(own[c]) / float(base[c]):.2f}" if own else "" for c in ("tokens/s", "peak MiB"))
    trained = any(row["row"] == name for row in results["rates"])
    return {"charts": charts, "unmeasured": unmeasured, "trained": trained, "speed": speed, "memory": memory}
