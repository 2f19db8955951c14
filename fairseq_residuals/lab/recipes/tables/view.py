"""A published table and the records that belong to it, put side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairseq_residuals.lab.recipes.tables.published import FAILED, Table
from fairseq_residuals.lab.recipes.tables.reproduced import Record, check


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

    @property
    def mean(self) -> float | None:
        """None if all failed."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, from n - 1; None of fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class View:
    """What :mod:`fairseq_residuals.lab.recipes.tables.render` prints."""

    table: Table
    cells: Mapping[tuple[str, str, str], Summary]
    """By row, column and metric; averages included."""
    metrics: Mapping[str, tuple[str, ...]]
    """Of each column, the metrics that it has any records of."""
    missing: Mapping[str, tuple[str, ...]]
    """Of each row that is to be reproduced and was not completely, the recorded columns without any score."""
    failed: Mapping[str, tuple[int, ...]]
    """Of each row, the seeds that failed."""
    signatures: Mapping[str, tuple[str, ...]]
    """Of each metric."""
    mixed: Mapping[str, int]
    """Of each row with a column whose records, those that count no longer too, are of several configurations, how many.
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
    with_score = {(row, column) for row, column, _ in cells}
    missing = {row: tuple(c for c in table.scored if (row, c) not in with_score) for row in table.expected}
    failed = {
        row: sorted({s for key, summary in cells.items() if key[0] == row for s in summary.failed})
        for row in table.rows
    }
    configurations = {row: max((len(h) for (r, _), h in hashes.items() if r == row), default=0) for row in table.rows}
    return View(
        table,
        cells,
        {c: tuple(m for m in order if any((row, c, m) in cells for row in table.rows)) for c in table.columns},
        {row: columns for row, columns in missing.items() if columns},
        {row: tuple(numbers) for row, numbers in failed.items() if numbers},
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
