"""The table printer: in Markdown, for documents and the terminal, and as CSV.

Neither rich nor tabulate serves: rich fits a table to the width of the window (80 where there is none) and so breaks
lines that other programs read; tabulate pads headings and strips cells by settings of its module.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence

Cell = str | int | float | None


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Cell]], left: int = 1) -> str:
    """Return columns wide enough for readers without a browser, numbers with four significant digits.

    Args:
        left: so many columns, from the first, are aligned to the left.
    """
    lines = [[show(cell).replace("|", r"\|") for cell in row] for row in (head, *rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(head))]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    aligned = [
        [f"{cell:{'<' if i < left else '>'}{widths[i]}}" for i, cell in enumerate(line)]
        for line in (lines[0], rule, *lines[1:])
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in aligned)


def mean_and_spread(values: Sequence[float], digits: int) -> str | None:
    """Return the mean and, of several values, the standard deviation from n - 1: "61.2 ± 0.8"; None of no values."""
    if not values:
        return None
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def show(cell: Cell) -> str:
    """Return a cell for readers: None is a dash."""
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return CSV; floats with every digit that they have, None empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()


def few(numbers: Sequence[int], most: int = 7) -> list[int]:
    """Return some of many, evenly spread, the first and the last among them: the layers of a short table."""
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / (most - 1))] for i in range(most)]
