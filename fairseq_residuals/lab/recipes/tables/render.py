"""A table as Markdown or CSV; in both, published and reproduced numbers have columns of their own."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from fairseq_residuals.lab.recipes.tables.published import FAILED, Table, Value
from fairseq_residuals.lab.recipes.tables.reproduced import Record, check
from fairseq_residuals.lab.utils.tables import Cell, csv_text, markdown_table, mean_and_spread

Format = Literal["markdown", "csv"]
NOTHING = "-"
MOST_NAMED = 8
"""Rows without scores; more of them are counted."""


@dataclass(frozen=True)
class Summary:
    """The scores of one cell by one metric, over seeds; None for a seed whose training failed."""

    by_seed: Mapping[int, float | None]

    @property
    def values(self) -> list[float]:
        return [value for value in self.by_seed.values() if value is not None]

    @property
    def failed(self) -> list[int]:
        """The seeds that failed."""
        return [seed for seed, value in self.by_seed.items() if value is None]


@dataclass(frozen=True)
class View:
    """A published table and the records that belong to it, put side by side."""

    table: Table
    cells: Mapping[tuple[str, str, str], Summary]
    """Scores by row, column and metric; averages included."""
    metrics: Mapping[str, tuple[str, ...]]
    """The metrics that each column has any records of."""
    signatures: Mapping[str, tuple[str, ...]]
    """The signatures of each metric."""
    mixed: Mapping[str, int]
    """Number of configurations that a column's records are of, by row, where it is more than one.

    Records that count no longer are among them.
    """


def put_together(table: Table, records: Iterable[Record]) -> View:
    """Return the view of a table on the records that are its own.

    Of records that differ only in what was measured (the same row, column, metric and seed) the last one counts.

    Raises:
        UserError: a record whose row or column the table does not have.
    """
    last: dict[tuple[str, str, str, int], Record] = {}
    hashes: dict[tuple[str, str], set[str]] = {}
    for record in records:
        if record.key == table.key:
            check(record, table)
            last[record.row, record.column, record.metric, record.seed] = record
            hashes.setdefault((record.row, record.column), set()).add(record.config_hash)
    seeds: dict[tuple[str, str, str], dict[int, float | None]] = {}
    for (row, column, metric, seed), record in sorted(last.items()):
        value = None if record.value == FAILED else float(record.value)
        seeds.setdefault((row, column, metric), {})[seed] = value
    found = {metric for _, _, metric in seeds}
    order = [*(m for m in table.metrics if m in found), *sorted(found - set(table.metrics))]
    for average, parts in table.averages.items():
        for row in table.rows:
            for metric in order:
                means = _means([seeds.get((row, part, metric), {}) for part in parts])
                if means:
                    seeds[row, average, metric] = means
    cells = {key: Summary(by_seed) for key, by_seed in seeds.items()}
    configurations = {row: max((len(h) for (r, _), h in hashes.items() if r == row), default=0) for row in table.rows}
    return View(
        table,
        cells,
        {c: tuple(m for m in order if any((row, c, m) in cells for row in table.rows)) for c in table.columns},
        {m: tuple(sorted({r.signature for r in last.values() if r.metric == m})) for m in order},
        {row: number for row, number in configurations.items() if number > 1},
    )


def _means(parts: list[dict[int, float | None]]) -> dict[int, float | None]:
    """Return the means of the seeds that have every part; failed if a part did."""
    complete = sorted(set.intersection(*(set(part) for part in parts)))
    means: dict[int, float | None] = {}
    for seed in complete:
        values = [part[seed] for part in parts]
        total = math.fsum(value for value in values if value is not None)
        means[seed] = None if None in values else total / len(values)
    return means


def render(table: Table, records: Iterable[Record], format: Format = "markdown") -> str:
    """Return the table with everything that has been reproduced of it.

    CSV is for programs: a line per cell and metric, with the mean over seeds, the standard deviation (from n - 1), and
    how many seeds succeeded and failed.

    Raises:
        UserError: a record whose row or column the table does not have.
    """
    return (_csv if format == "csv" else _markdown)(put_together(table, records))


def _head(view: View) -> list[str]:
    """Return the headings: for each column of the table its own, ``published`` and one per metric."""
    several = len(view.signatures) > 1
    head = ["row"]
    for column in view.table.columns:
        below = ["published"] if view.table.is_published else []
        if column not in view.table.stated:
            metrics = view.metrics[column]
            below += [f"reproduced {m}" if several else "reproduced" for m in metrics] or ["reproduced"]
        head += [f"{column} {name}" for name in below]
    return head


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
    """Return how many digits a column shows: as many as any published score has; None: as they are."""
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
    text = mean_and_spread(summary.values, decimals)
    if text is None:
        return "failed"
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
        by_row = {
            row: {s for key, cell in view.cells.items() if key[0] == row for s in cell.failed} for row in table.rows
        }
        failed = [f"{row} (seed {', '.join(map(str, sorted(seeds)))})" for row, seeds in by_row.items() if seeds]
        remarks += [f"Missing: {_missing(view)}.", f"Failed: {'; '.join(failed) or 'nothing'}."]
    if view.mixed:
        rows = "; ".join(f"{row} ({number})" for row, number in view.mixed.items())
        remarks.append(f"Caution, runs of several configurations are put together in: {rows}.")
    return remarks + ([f"Note: {table.note}."] if table.note else [])


def _missing(view: View) -> str:
    """Return which recorded columns have no score, of each row that is to be reproduced."""
    scored, known = view.table.scored, {(row, column) for row, column, _ in view.cells}
    missing = {row: tuple(c for c in scored if (row, c) not in known) for row in view.table.expected}
    rows = {row: columns for row, columns in missing.items() if columns}
    if len(rows) == len(view.table.expected) and all(columns == scored for columns in rows.values()):
        return "everything"
    if len(rows) > MOST_NAMED:
        return f"scores of {len(rows)} of {len(view.table.expected)} rows"
    return "; ".join(row if cs == scored else f"{row} ({', '.join(cs)})" for row, cs in rows.items()) or "nothing"


def _markdown(view: View) -> str:
    heading = ". ".join(filter(None, (f"{view.table.key}: {view.table.title}".rstrip(": "), view.table.source)))
    remarks = (f"- {remark}" for remark in _remarks(view))
    return "\n".join([f"{heading}.", "", markdown_table(_head(view), _rows(view)), "", *remarks]) + "\n"


def _csv(view: View) -> str:
    rows: list[tuple[Cell, ...]] = []
    for row, published in view.table.rows.items():
        for column in view.table.columns:
            value = published.get(column)
            printed = None if value is None else _published(value, _decimals(view.table, column))
            for metric in view.metrics[column] or ("",):
                summary = view.cells.get((row, column, metric))
                scores: tuple[Cell, ...] = (None,) * 4
                if summary:
                    values = summary.values
                    mean = statistics.fmean(values) if values else None
                    spread = statistics.stdev(values) if len(values) > 1 else None
                    scores = (mean, spread, len(values), len(summary.failed))
                rows.append((row, column, printed, metric, *scores))
    return csv_text(("row", "column", "published", "metric", "reproduced", "spread", "seeds", "failed_seeds"), rows)
