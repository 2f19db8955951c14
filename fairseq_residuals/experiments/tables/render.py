"""A table as text, Markdown, CSV or LaTeX; in each, published and reproduced numbers have columns of their own."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from typing import Literal

from fairseq_residuals.analysis.tables import markdown_table
from fairseq_residuals.experiments.tables.published import Table, Value
from fairseq_residuals.experiments.tables.reproduced import Record
from fairseq_residuals.experiments.tables.view import Summary, View, put_together

Format = Literal["text", "markdown", "csv", "latex"]
NOTHING = "-"
GAP = "  "


def render(table: Table, records: Iterable[Record], format: Format = "text") -> str:
    """The table with everything that has been reproduced of it.

    CSV is for programs: a line per cell and metric, with the mean over seeds, the standard deviation (from n - 1), and
    how many seeds succeeded and failed.

    Raises:
        UserError: a record whose row or column the table does not have.
    """
    return _FORMATS[format](put_together(table, records))


def _columns(view: View) -> list[tuple[str, list[str]]]:
    """Each column of the table with its own columns below: ``published``, and one per metric."""
    several = len(view.signatures) > 1
    columns = []
    for column in view.table.columns:
        below = ["published"] if view.table.is_published else []
        if column not in view.table.stated:
            metrics = view.metrics[column]
            below += [f"reproduced {m}" if several else "reproduced" for m in metrics] or ["reproduced"]
        if below:
            columns.append((column, below))
    return columns


def _rows(view: View) -> list[list[str]]:
    rows = []
    for row, published in view.table.rows.items():
        cells = [row]
        for column in view.table.columns:
            decimals = _decimals(view.table, column)
            if view.table.is_published:
                cells.append(_published(published.get(column), decimals))
            if column not in view.table.stated:
                summaries = [view.cells.get((row, column, m)) for m in view.metrics[column]] or [None]
                cells += [_reproduced(summary, max(decimals or 0, 2)) for summary in summaries]
        rows.append(cells)
    return rows


def _decimals(table: Table, column: str) -> int | None:
    """As many as any published score of the column has; None: as they are."""
    if column in table.stated:
        return None
    values = [cells.get(column) for cells in table.rows.values()]
    return max((len(repr(v).partition(".")[2]) for v in values if isinstance(v, float)), default=0)


def _published(value: Value, decimals: int | None) -> str:
    if value is None:
        return NOTHING
    if decimals is None or isinstance(value, str | bool):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return f"{value:.{decimals}f}"


def _reproduced(summary: Summary | None, decimals: int) -> str:
    if summary is None:
        return NOTHING
    if summary.mean is None:
        return "failed"
    text = f"{summary.mean:.{decimals}f}"
    if summary.spread is not None:
        text += f" ± {summary.spread:.{decimals}f}"
    if len(summary.by_seed) > 1:
        text += f" ({len(summary.values)}" + (f" of {len(summary.by_seed)}" if summary.failed else "") + ")"
    return text


def _remarks(view: View) -> list[str]:
    table = view.table
    remarks = [f"Published: {table.definition}."] if table.is_published and table.definition else []
    remarks += [f"Reproduced, {m}: {'; '.join(signatures)}." for m, signatures in view.signatures.items()]
    if any(len(summary.by_seed) > 1 for summary in view.cells.values()):
        remarks.append("Over several seeds: mean ± standard deviation (number of seeds), of averages too.")
    if table.expected:
        failed = [f"{row} (seed {', '.join(map(str, seeds))})" for row, seeds in view.failed.items()]
        remarks += [f"Missing: {_missing(view)}.", f"Failed: {'; '.join(failed) or 'nothing'}."]
    if view.mixed:
        rows = "; ".join(f"{row} ({number})" for row, number in view.mixed.items())
        remarks.append(f"Caution, runs of several configurations are put together in: {rows}.")
    return remarks + ([f"Note: {table.note}."] if table.note else [])


def _missing(view: View) -> str:
    scored, rows = view.table.scored, view.missing
    if len(rows) == len(view.table.expected) and all(columns == scored for columns in rows.values()):
        return "everything"
    return "; ".join(row if cs == scored else f"{row} ({', '.join(cs)})" for row, cs in rows.items()) or "nothing"


def _heading(table: Table) -> str:
    return ". ".join(filter(None, (f"{table.key}: {table.title}".rstrip(": "), table.source))) + "."


def _text(view: View) -> str:
    columns = _columns(view)
    body = [["row", *(name for _, below in columns for name in below)], *_rows(view)]
    widths = [max(map(len, cells)) for cells in zip(*body, strict=True)]
    first, at = [" " * widths[0]], 1
    for column, below in columns:
        spanned = widths[at : at + len(below)]
        width = max(len(column), sum(spanned) + len(GAP) * (len(below) - 1))
        # a heading wider than what it spans widens the last of it
        widths[at + len(below) - 1] += width - sum(spanned) - len(GAP) * (len(below) - 1)
        first.append(column.ljust(width))
        at += len(below)
    lines = [first, *([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in body)]
    return (
        "\n".join([_heading(view.table), "", *(GAP.join(line).rstrip() for line in lines), "", *_remarks(view)]) + "\n"
    )


def _markdown(view: View) -> str:
    head = ["row", *(f"{column} {name}" for column, below in _columns(view) for name in below)]
    remarks = (f"- {remark}" for remark in _remarks(view))
    return "\n".join([_heading(view.table), "", markdown_table(head, _rows(view)), "", *remarks]) + "\n"


def _latex(view: View) -> str:
    columns = _columns(view)
    upper = ["", *(rf"\multicolumn{{{len(below)}}}{{c}}{{{_tex(column)}}}" for column, below in columns)]
    lower = ["row", *(_tex(name) for _, below in columns for name in below)]
    body = [[_tex(cell) for cell in row] for row in _rows(view)]
    lines = [f"% {remark}" for remark in (_heading(view.table), *_remarks(view))]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(lower) - 1)}}}", r"\toprule"]
    head, rows = ([" & ".join(cells) + r" \\" for cells in part] for part in ((upper, lower), body))
    return "\n".join([*lines, *head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


_TEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _tex(text: str) -> str:
    return re.sub(r"[\\±~^&%$#_{}]", lambda m: _TEX.get(m[0], f"\\{m[0]}"), text)


def _csv(view: View) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("row", "column", "published", "metric", "reproduced", "spread", "seeds", "failed_seeds"))
    for row, published in view.table.rows.items():
        for column in view.table.columns:
            printed = _published(published.get(column), _decimals(view.table, column)).removeprefix(NOTHING)
            for metric in view.metrics[column] or ("",):
                summary = view.cells.get((row, column, metric))
                scores = (
                    (summary.mean, summary.spread, len(summary.values), len(summary.failed)) if summary else ("",) * 4
                )
                writer.writerow((row, column, printed, metric, *scores))
    return buffer.getvalue()


_FORMATS: dict[str, Callable[[View], str]] = {"text": _text, "markdown": _markdown, "csv": _csv, "latex": _latex}
