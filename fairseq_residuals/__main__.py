"""The console command ``fairseq-residuals``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq import mistakes

COMMANDS = {
    "list": "fairseq_residuals.lab.look.list_wirings",
    "show": "fairseq_residuals.lab.look.show_wiring",
    "average": "fairseq_residuals.plugin.checkpoints.average",
    "import": "fairseq_residuals.plugin.checkpoints.importing.importer",
    "export": "fairseq_residuals.plugin.checkpoints.exporting.exporter",
    "prepare": "fairseq_residuals.lab.data.command",
    "score": "fairseq_residuals.lab.scoring.command",
    "table": "fairseq_residuals.lab.recipes.tables.command",
    "reproduce": "fairseq_residuals.lab.recipes.command",
    "gradients": "fairseq_residuals.lab.look.gradients",
    "similarity": "fairseq_residuals.lab.look.similarity",
    "change": "fairseq_residuals.lab.look.change",
    "weights": "fairseq_residuals.lab.look.weights",
    "condition": "fairseq_residuals.lab.look.condition",
    "explain": "fairseq_residuals.lab.look.explain",
    "curves": "fairseq_residuals.lab.look.curves",
    "diagnose": "fairseq_residuals.lab.look.diagnose",
    "compare": "fairseq_residuals.lab.compare.command",
    "linearize": "fairseq_residuals.lab.look.linearize",
    "bench": "fairseq_residuals.lab.bench.command",
    "conformance": "fairseq_residuals.wirings.conformance",
    "site": "fairseq_residuals.lab.site",
}


WITHOUT_FAIRSEQ = (
    *("list", "show", "explain", "gradients", "similarity", "change", "weights", "condition"),
    "conformance",
)
"""Commands that need PyTorch alone, and those with a picture matplotlib."""


def build_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of some subcommands, whose modules it imports.

    Raises:
        UserError: one of them needs fairseq, which is not installed.
    """
    parser = argparse.ArgumentParser(
        prog="fairseq-residuals",
        description="Norms and residual connections of deep Transformers.",
    )
    parser.add_argument(
        "--import",
        metavar="FILE",
        action="append",
        help="a file of Python with wirings or norms of one's own, for any command but reproduce and site",
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = _import(name)
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        subparser.set_defaults(run=module.run, mistake_status=1)
        module.configure(subparser)
    return parser


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(COMMANDS[name])
    except ModuleNotFoundError as error:
        if _has_fairseq():
            raise
        raise UserError(
            f"the command {name} needs fairseq and the extra of this package that is called so: {_INSTALL};"
            f" {', '.join(WITHOUT_FAIRSEQ)} need neither"
        ) from error


_INSTALL = "`pip install --no-deps fairseq==0.12.2` and `pip install -e '.[fairseq]'` in the clone of fairseq_residuals"


def _has_fairseq() -> bool:
    return importlib.util.find_spec("fairseq") is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status.

    What a user did wrong is one sentence on stderr, with status 1 (2 where the command says so).
    """
    argv = sys.argv[1:] if argv is None else argv
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--import", dest="files", type=Path, action="append", default=[])
    own, argv = first.parse_known_args(argv)
    command = next(iter(argv), "")
    known = command in COMMANDS
    bare = not known and not _has_fairseq()
    try:
        if own.files:
            from fairseq_residuals.lab.compare.entries import load  # needs PyTorch, which takes seconds

            for path in own.files:
                load(path, wirings=False)
        parser = build_parser([command] if known else WITHOUT_FAIRSEQ if bare else COMMANDS)
    except UserError as error:
        print(f"fairseq-residuals {command}: error: {error}", file=sys.stderr)
        return 1
    if bare:
        parser.epilog = f"Further commands need fairseq: {_INSTALL}."
    args, further = parser.parse_known_args(argv)
    if further and "further" not in args:
        parser.error(f"unrecognized arguments: {' '.join(further)}")
    args.further, args.imported = further, own.files
    try:
        status: int = args.run(args)
        print(end="", flush=True)  # stdout may be closed, and None then
        return status
    except BrokenPipeError:
        # who reads the output (head) wants no more of it; Python would say so again when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print(f"{parser.prog} {args.command}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        mistake = mistakes.explain(error)
        if mistake is None:
            raise
        print(f"{parser.prog} {args.command}: error: {mistake}", file=sys.stderr)
        return args.mistake_status


if __name__ == "__main__":
    sys.exit(main())
