"""``results/published.yaml``: the tables of the papers, number by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fairseq_residuals.lab.utils.checkout import RESULTS, require_checkout
from fairseq_residuals.wirings.core.errors import UserError, did_you_mean
from modern_fairseq.plain_yaml import read_yaml

PUBLISHED = RESULTS / "published.yaml"

FAILED: Literal["failed"] = "failed"
"""The mark that stands for a score where the training failed."""
Value = float | int | bool | str | None
"""The content of a cell; None where no number was given."""


@dataclass(frozen=True)
class Table:
    """One table; of a table that nobody published, the rows are empty."""

    experiment: str
    name: str
    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Value]]
    title: str = ""
    definition: str = ""
    """Definition of the scores, in the source's words where it has some."""
    source: str = ""
    metrics: tuple[str, ...] = ()
    """The reproduced metrics that are comparable, the closest one first."""
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns that are the mean of others: computed per seed, never recorded."""
    stated: tuple[str, ...] = ()
    """Columns that are not scores: sizes, settings, differences."""
    cited: tuple[str, ...] = ()
    """Rows that the source itself takes from elsewhere; nothing is missing if they are not reproduced."""
    note: str = ""

    @property
    def key(self) -> str:
        """Name by which a user calls the table: ``b2t/table1``."""
        return f"{self.experiment}/{self.name}"

    @property
    def scored(self) -> tuple[str, ...]:
        """The columns that a run records."""
        return tuple(c for c in self.columns if c not in self.stated and c not in self.averages)

    @property
    def expected(self) -> tuple[str, ...]:
        """The rows that are to be reproduced."""
        return tuple(row for row in self.rows if row not in self.cited) if self.scored else ()

    @property
    def is_published(self) -> bool:
        """Whether there is any number in it."""
        return any(value is not None for cells in self.rows.values() for value in cells.values())


def load_published(path: Path | None = None) -> dict[str, Table]:
    """Return all tables, by their keys; ``results/published.yaml`` unless another file is named.

    Raises:
        UserError: the file is missing or not as its head says.
    """
    path = path or PUBLISHED
    if path == PUBLISHED:
        require_checkout(path)
    try:
        content = read_yaml(path)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    tables = {}
    place = "the file"
    try:
        for experiment, group in content.items():
            place = experiment
            for name, fields in group["tables"].items():
                place = f"{experiment}/{name}"
                tables[place] = _table(experiment, name, group["source"], fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no file of tables: {place}: {error}") from None
    if not tables:
        raise UserError(f"{path} is no file of tables: it has none")
    return tables


def find_table(key: str, tables: Mapping[str, Table]) -> Table:
    """Return the table that ``b2t/table1`` names.

    Raises:
        UserError: there is none; the message has the nearest name, or says how to list them.
    """
    if key not in tables:
        raise UserError(f"there is no table {key!r}{did_you_mean(key, tables)}; 'fairseq-residuals table' lists them")
    return tables[key]


def _table(experiment: str, name: str, source: str, content: Mapping[str, Any]) -> Table:
    fields = dict(content)
    where = fields.pop("where", None)
    for key in ("columns", "metrics", "stated", "cited"):
        fields[key] = tuple(fields.get(key, ()))
    fields["averages"] = {column: tuple(parts) for column, parts in fields.get("averages", {}).items()}
    for row, cells in fields["rows"].items():
        if set(cells) != set(fields["columns"]):
            raise ValueError(f"row {row} has not the columns {', '.join(map(str, fields['columns']))}")
    return Table(experiment, name, source=f"{source}, {where}" if where else source, **fields)
