"""``fairseq-residuals show WIRING``: paper, equation, options, and where paper and code part."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import fairseq_residuals
from fairseq_residuals.wirings.core.config import options_of, show_value
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import find_variant

OF_SOME: dict[str, Any] = {"gpas": "layer", "depth_mup": True, "init": "ds_init"}
"""Options that some wirings refuse, with a value that is not the default."""
HELP = "show a wiring: description, equations, paper, options with their defaults"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variant", metavar="WIRING", help="a name that `fairseq-residuals list` prints")


def _source(variant: type) -> str:
    """Return the file of a class, from the package on where it is one of the package's."""
    path = Path(inspect.getsourcefile(variant) or "")
    package = Path(fairseq_residuals.__file__).parent
    return str(path.relative_to(package.parent) if path.is_relative_to(package) else path)


def run(args: argparse.Namespace) -> int:
    name, options, _ = args.variant.partition("/")
    variant = find_variant(name)
    if options:
        raise UserError(f"show takes a name alone; explain {args.variant} prints the equations with these options")
    description = inspect.cleandoc(sys.modules[variant.__module__].__doc__ or "").replace("::\n", "").replace("``", "")
    print(f"{variant.name}\n\n{description}\n")
    equations = variant.equations_of(variant.Config())
    for label, equation in zip_longest(("Equations:",), equations, fillvalue=""):
        print(f"{label:15}{equation}")
    # options bring some of the names
    used = {name for equation in equations for name in re.findall(r"\w+", equation)}
    if symbols := [f"{name} is {parameter}" for name, parameter in variant.symbols.items() if name in used]:
        print(f"{'in which':15}{', '.join(symbols)}")
    if variant.starts_as:
        print(f"{'At the start:':15}the output of {variant.starts_as}")
    print(f"{'Paper:':15}{variant.paper}\n{'Their code:':15}{variant.code or 'none published'}")
    print(f"{'The class:':15}{variant.__name__} in {_source(variant)}")
    print(f"{'Compared with:':15}{variant.verified}")
    if variant.ships_in:
        print(f"{'Ships in:':15}{variant.ships_in}")
    if variant.extension:
        print(f"{'Our choice:':15}{variant.extension}")
    print("Options:")
    for option in options_of(variant.Config).values():
        other = variant.Config(**{option.name: OF_SOME.get(option.name, option.default)})
        why = variant.contradiction(other).partition(", ")[2]
        about = f"has no other value here, {why}" if why else f"{option.help}; valid: {option.describe()}"
        print(f"  {option.name}={show_value(option.default)}\n      {about}")
    return 0
