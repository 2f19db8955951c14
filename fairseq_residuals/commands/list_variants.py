"""``fairseq-residuals list``: the variants, or the architectures made of them."""

from __future__ import annotations

import argparse

from fairseq_residuals.architectures import ARCHITECTURES
from fairseq_residuals.options import options_of, show_value
from fairseq_residuals.registry import VARIANTS

HELP = "list the variants, or with --architectures every name for --arch"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "markdown"), default="text", help="markdown: the README's table")
    parser.add_argument("--architectures", action="store_true", help="list the names for --arch instead")


def run(args: argparse.Namespace) -> int:
    if args.architectures:
        print("\n".join(sorted(ARCHITECTURES)))
    else:
        print(markdown_table() if args.format == "markdown" else text_table())
    return 0


def _options(name: str) -> list[str]:
    return [f"{o.name}={show_value(o.default)}" for o in options_of(VARIANTS[name].Config).values()]


def _by_year() -> list[str]:
    return sorted(VARIANTS, key=lambda name: (VARIANTS[name].year, name))


def text_table() -> str:
    """One line per variant: name, equation, options with their defaults."""
    width = max(map(len, VARIANTS))
    lines = []
    for name in _by_year():
        variant = VARIANTS[name]
        lines.append(f"{name:{width}}  {variant.paper}")
        lines += [f"{'':{width}}  {line}" for line in variant.equations]
        if options := _options(name):
            lines.append(f"{'':{width}}  options: {', '.join(options)}")
    return "\n".join(lines)


def markdown_table() -> str:
    """The table of variants in README.md."""
    lines = ["| Year | Variant | Wiring | Paper | Options | Checked against |", "|---|---|---|---|---|---|"]
    for name in _by_year():
        v = VARIANTS[name]
        options = ", ".join(f"`{o}`" for o in _options(name)) or "-"
        equation = "<br>".join(f"`{line}`" for line in v.equations)
        lines.append(f"| {v.year} | `{name}` | {equation} | {v.paper} | {options} | `{v.code}` |")
    return "\n".join(lines)
