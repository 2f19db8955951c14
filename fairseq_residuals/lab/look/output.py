"""Output of an analysis: a picture and the numbers in it, all of them or nothing."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_residuals.lab.utils.tables import Cell, csv_text
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISTAKE_STATUS = 2
"""Exit status of an analysis whose user made a mistake."""


def add_output_flags(parser: argparse.ArgumentParser, name: str) -> None:
    """Add ``--out``, ``--name`` and ``--svg``, and the exit status of these commands."""
    files = parser.add_argument_group("files")
    files.add_argument(
        "--out", type=Path, default=Path("figures"), metavar="DIR", help="folder for the files (%(default)s)"
    )
    files.add_argument("--name", default=name, metavar="NAME", help="of the files, without ending (%(default)s)")
    files.add_argument("--svg", action="store_true", help="write the picture as SVG too")
    parser.set_defaults(mistake_status=MISTAKE_STATUS)


def check_folder(args: argparse.Namespace) -> None:
    """Check that ``--out`` can be written to, before anything is computed; :func:`write` makes the folder.

    Raises:
        UserError: nothing can be written there.
    """
    try:
        there = next(path for path in (args.out, *args.out.absolute().parents) if path.exists())
    except OSError as error:
        raise UserError(f"--out names {args.out}, where nothing can be written: {error.strerror}") from error
    if not there.is_dir():
        raise UserError(f"--out names {args.out}, where nothing can be written: {there} is a file")
    if Path(args.name).name != args.name or not os.access(there, os.W_OK):
        raise UserError(f"--out {args.out} and --name {args.name} must be a folder to write to and a plain file name")


def write(args: argparse.Namespace, figure: Figure, head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write NAME.png, NAME.csv and, where asked for, NAME.svg; none of them looks finished before all are."""
    args.out.mkdir(parents=True, exist_ok=True)
    files = {".csv": None, ".png": "png"} | ({".svg": "svg"} if args.svg else {})
    paths = {args.out / f"{args.name}{ending}": kind for ending, kind in files.items()}
    with ExitStack() as stack:
        for path, kind in paths.items():
            unfinished = stack.enter_context(atomic_write(path))
            if kind is None:
                unfinished.write_text(csv_text(head, rows), encoding="utf-8")
            else:
                figure.savefig(unfinished, format=kind)
    print(f"wrote {', '.join(str(path) for path in paths)}")
