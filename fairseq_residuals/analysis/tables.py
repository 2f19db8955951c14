"""What was measured, as a table for the terminal or in Markdown, and as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

Cell = str | int | float | None


def text_table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Aligned columns, numbers with four significant digits."""
    lines = [list(head), *([show(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    numeric = [all(_is_number(line[i]) for line in lines[1:]) for i in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if right else f"{cell:{width}}"
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Cell]], left: int = 1) -> str:
    """Columns as wide as they need to be for readers without a browser; the first ``left`` are aligned to the left."""
    lines = [[cell.replace("|", r"\|") for cell in head]]
    lines += [[show(cell).replace("|", r"\|") for cell in row] for row in rows]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(head))]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    aligned = [
        [f"{cell:{'<' if i < left else '>'}{widths[i]}}" for i, cell in enumerate(line)]
        for line in (lines[0], rule, *lines[1:])
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in aligned)


def show(cell: Cell) -> str:
    """A cell for readers: None is a dash."""
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace("-", "0", 1) if text == "-" else text.replace(",", ""))
    except ValueError:
        return False
    return True


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Floats with every digit that they have; None is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()


def few(numbers: Sequence[int], most: int = 7) -> list[int]:
    """Some of many, evenly spread, the first and the last among them: the layers of a short table."""
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / (most - 1))] for i in range(most)]
