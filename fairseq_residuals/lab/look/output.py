"""Output of an analysis: a picture and the numbers in it, all of them or nothing.

Numbers by layer of several models over depth are drawn as a line for each model and a panel for each stack.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.utils.tables import Cell, csv_text, few, markdown_table
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISTAKE_STATUS = 2
"""Exit status of an analysis whose user made a mistake."""
MOST_NAMED = 8
"""Most models that a legend names."""
STACKS = ("encoder", "decoder")
ByLayer = dict[str, list[float]]
"""A number for each layer from the bottom, by stack."""
Measured = Sequence[tuple[str, str, ByLayer]]


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


def draw_by_layer(measured: Measured, y: str) -> Any:
    """Return a figure and its panels.

    Args:
        measured: per model its label, its wiring (which chooses the style), and its numbers.
        y: label of the axis.
    """
    stacks = [stack for stack in STACKS if any(stack in found for _, _, found in measured)]
    figure, axes = plots.new_figure(1, len(stacks), height=2.2, sharey=True)
    styles = plots.line_styles(wiring for _, wiring, _ in measured)
    for stack, panel in zip(stacks, axes[0], strict=True):
        for (label, _, found), line in zip(measured, styles, strict=True):
            values = found.get(stack, [])
            values = values if any(map(math.isfinite, values)) else []  # matplotlib cannot mark a line of nan alone
            panel.plot(range(1, len(values) + 1), values, label=label, **line)
        plots.finish(panel, f"{stack} layer", y if panel is axes[0][0] else "", whole_x=True)
    if len(measured) <= MOST_NAMED:
        plots.legend(figure, axes[0][-1])
    return figure, axes[0]


def show_by_layer(args: argparse.Namespace, measured: Measured, y: str, column: str, log: bool = False) -> None:
    """Print a table of some layers, and write the picture and all numbers.

    Args:
        measured, y: as for :func:`draw_by_layer`.
        column: the numbers' name in the CSV file.
    """
    figure, (panel, *_) = draw_by_layer(measured, y)
    if log:
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    print(table([(label, found) for label, _, found in measured]))
    rows: list[list[Cell]] = [
        [label, wiring, stack, layer, value]
        for label, wiring, found in measured
        for stack, values in found.items()
        for layer, value in enumerate(values, start=1)
    ]
    write(args, figure, ("model", "wiring", "stack", "layer", column), rows)


def table(measured: Sequence[tuple[str, ByLayer]]) -> str:
    """Return a row for each model, by its label, with the numbers of some layers of each stack."""
    stacks = [stack for stack in STACKS if any(stack in found for _, found in measured)]
    depths = {stack: max(len(found.get(stack, [])) for _, found in measured) for stack in stacks}
    places = [(stack, layer) for stack, depth in depths.items() for layer in few(range(1, depth + 1), 5)]
    rows = [
        [label, *(next(iter(found.get(stack, [])[layer - 1 : layer]), None) for stack, layer in places)]
        for label, found in measured
    ]
    return markdown_table(["model", *(f"{stack[:3]} {layer}" for stack, layer in places)], rows)
