"""``fairseq-residuals list``: the wirings, or the architectures made of them."""

from __future__ import annotations

import argparse
from collections import Counter
from importlib.util import find_spec

from fairseq_residuals.wirings.core.base import Variant
from fairseq_residuals.wirings.core.config import options_of, show_value
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS, list_variants

SENTENCES, ACTIVATIONS, EQUATIONS = "to the generated sentence", "activations and gradients", "equations"
"""Words for how far a wiring is compared."""
HELP = "list the wirings, or with --architectures every name for --arch"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=("text", "summary"),
        default="text",
        help="(text) summary: the table of results/wirings.md",
    )
    parser.add_argument("--architectures", action="store_true", help="list the names for --arch instead")


def run(args: argparse.Namespace) -> int:
    if args.architectures:
        if find_spec("fairseq") is None:
            raise UserError("architectures are names for fairseq, which is not installed; list without the flag")
        from fairseq_residuals.plugin.models.architectures import ARCHITECTURES

        print("\n".join(sorted(ARCHITECTURES)))
    else:
        print({"text": text_table, "summary": summary_table}[args.format]())
    return 0


def own_options(variant: type[Variant]) -> list[str]:
    """Return the options that not all wirings have, with their defaults, and the common ones that start elsewhere."""
    common = {(o.name, o.default) for o in options_of(Variant.Config).values()}
    own = [o for o in options_of(variant.Config).values() if (o.name, o.default) not in common]
    return [f"{o.name}={show_value(o.default)}" for o in own]


def text_table() -> str:
    """Return some lines per wiring: name and paper, equations, released models, options."""
    width = max(map(len, VARIANTS))
    lines = []
    for name in list_variants():
        variant = VARIANTS[name]
        lines.append(f"{name:{width}}  {variant.paper}")
        lines += [f"{'':{width}}  {line}" for line in variant.equations_of(variant.Config())]
        if variant.ships_in:
            lines.append(f"{'':{width}}  ships in: {variant.ships_in}")
        if options := own_options(variant):
            lines.append(f"{'':{width}}  options: {', '.join(options)}")
    common = ", ".join(f"{o.name}={show_value(o.default)}" for o in options_of(Variant.Config).values())
    return "\n".join([*lines, "", f"options of every wiring: {common}"])


def evidence(variant: type[Variant]) -> str:
    """Return how far a wiring is compared with code that others published: the words of ``verified`` say it."""
    if variant.verified.startswith("re-implementation") or "gradients" not in variant.verified:
        return EQUATIONS
    return SENTENCES if "generation" in variant.verified else ACTIVATIONS


def _compared(variant: type[Variant]) -> str:
    """Return how far, and with what."""
    if evidence(variant) == EQUATIONS:
        return variant.verified
    source = variant.verified.partition(":")[0]
    is_code_of_source = source.startswith("authors'") or variant.code.startswith("huggingface/")
    return f"{evidence(variant)}: {source}{f' (`{variant.code}`)' if is_code_of_source else ''}"


def summary_table() -> str:
    """Return how many wirings are compared how far, and a table of four columns (results/wirings.md)."""
    far = Counter(evidence(VARIANTS[name]) for name in list_variants())
    lines = [
        f"Of {far.total()} wirings, {far[SENTENCES]} equal their authors' code, the generated sentences too,"
        f" {far[ACTIVATIONS]} equal published code in",
        f"activations and gradients (the table says whose, and of which stack), and {far[EQUATIONS]} follow equations"
        " alone.",
        "",
        "| Wiring | Paper | Equations | Compared |",
        "|---|---|---|---|",
    ]
    for name in list_variants():
        v = VARIANTS[name]
        paper = v.paper.split(",")[0]
        equations = "<br>".join(f"`{line}`" for line in v.equations_of(v.Config()))
        lines.append(f"| `{name}` | {paper} | {equations} | {_compared(v)} |")
    return "\n".join(lines)
