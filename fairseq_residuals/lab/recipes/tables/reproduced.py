"""``results/reproduced.csv``: what was measured here, one score a line."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairseq_residuals.lab.recipes.tables.published import FAILED, Table, find_table
from fairseq_residuals.lab.utils.checkout import RESULTS
from fairseq_residuals.lab.utils.tables import csv_text
from fairseq_residuals.plugin.documents import read_text
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.atomic_write import atomic_write

REPRODUCED = RESULTS / "reproduced.csv"


@dataclass(frozen=True)
class Record:
    """One score of one run."""

    experiment: str
    table: str
    row: str
    column: str
    value: float | Literal["failed"]
    metric: str
    """Metric's name: ``sacrebleu``, ``rouge``, ``ppl_context_0``; scores of different metrics never share a column."""
    signature: str
    """Signature of the metric: what exactly was computed."""
    seed: int
    commit: str
    """The commit of this repository."""
    torch: str
    device: str
    hours: float
    """Wall time of training."""
    config_hash: str
    """Digest of the configuration without its seed."""
    date: str
    note: str = ""

    def __post_init__(self) -> None:
        """Check the entries.

        Raises:
            ValueError: a value that is neither a finite number nor "failed", or an entry that is empty.
        """
        if self.value != FAILED and not (isinstance(self.value, float | int) and math.isfinite(self.value)):
            raise ValueError(f"{self.value!r} is neither a finite number nor {FAILED}")
        empty = [n for n in ("experiment", "table", "row", "column", "metric", "signature") if not getattr(self, n)]
        if empty:
            raise ValueError(f"{', '.join(empty)} is empty")

    @property
    def key(self) -> str:
        """Return the name of its table, ``b2t/table1``."""
        return f"{self.experiment}/{self.table}"


HEADER = tuple(f.name for f in dataclasses.fields(Record))


def read_records(path: Path) -> list[Record]:
    """Return all records in the order of writing; none if there is no file.

    Raises:
        UserError: the file has another header, or a line that is no record.
    """
    return _parse(read_text(path), path) if path.exists() else []


def append(records: Sequence[Record], path: Path, tables: Mapping[str, Table]) -> None:
    """Add records, all or none, to the file of results.

    Other runs may be writing to it, on this machine or another that locks the same file system. Readers see the old
    file or the new one.

    Raises:
        UserError: a record has no place in ``tables``, or is of a column that is computed from others; the file is
            not one of records.
    """
    for record in records:
        check(record, find_table(record.key, tables))
    path = path.resolve()  # one place for the lock, whatever links lead to the file
    # a lock of its own, since the records' file is replaced
    with locked(path.parent, f".{path.name}.lock", wait=True):
        old = read_text(path) if path.exists() else ""
        _parse(old, path)
        rows = [dataclasses.astuple(record) for record in records]
        new = csv_text(HEADER, rows) if not old else csv_text(HEADER, rows).partition("\n")[2]
        with atomic_write(path) as temporary:
            temporary.write_text(old + new, encoding="utf-8", newline="")


def check(record: Record, table: Table) -> None:
    """Check that a record is of the table.

    Raises:
        UserError: the table has no such row, or no such column that is recorded.
    """
    if record.row not in table.rows:
        raise UserError(f"{table.key} has no row {record.row!r}; its rows are {', '.join(table.rows)}")
    if record.column not in table.scored:
        raise UserError(
            f"{table.key} has no column {record.column!r} to record; its scores are {', '.join(table.scored) or 'none'}"
        )


def _parse(text: str, path: Path) -> list[Record]:
    if not text:
        return []
    try:
        header, *lines = csv.reader(io.StringIO(text, newline=""))
    except csv.Error as error:
        raise UserError(f"{path} is no CSV file: {error}") from None
    if tuple(header) != HEADER:
        raise UserError(f"{path} is no file of results: its first line has to be {','.join(HEADER)}")
    if not text.endswith("\n"):
        raise UserError(f"{path} breaks off in its last line; complete or remove it")
    records = []
    for number, line in enumerate(lines, start=2):
        if len(line) != len(HEADER):
            raise UserError(f"{path}: record {number} is not valid: it has {len(line)} fields, not {len(HEADER)}")
        entry = dict(zip(HEADER, line, strict=True))
        try:
            value: float | Literal["failed"] = FAILED if entry["value"] == FAILED else float(entry["value"])
            numbers = {"value": value, "seed": int(entry["seed"]), "hours": float(entry["hours"])}
            records.append(Record(**{**entry, **numbers}))  # type: ignore[arg-type]
        except ValueError as error:
            raise UserError(f"{path}: record {number} is not valid: {error}") from None
    return records
