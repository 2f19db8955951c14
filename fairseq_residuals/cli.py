"""The console command ``fairseq-residuals``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from modern_fairseq.errors import UserError

COMMANDS = {
    "list": "fairseq_residuals.commands.list_variants",
    "show": "fairseq_residuals.commands.show",
    "average": "fairseq_residuals.commands.average",
    "verify": "fairseq_residuals.commands.verify",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = argparse.ArgumentParser(
        prog="fairseq-residuals",
        description="Norms and residual connections of deep Transformers, in fairseq.",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.configure(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit status; what a user did wrong is one sentence on stderr, status 1."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except UserError as error:
        print(f"{parser.prog} {args.command}: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
