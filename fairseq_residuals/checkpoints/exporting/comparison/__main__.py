"""Print what each format makes of each wiring: differences of logits, tokens that differ in beam search, sizes.

::

    python -m fairseq_residuals.checkpoints.exporting.comparison --results rows.json

prints the table that docs/CHECKPOINTS.md has.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from fairseq_residuals.checkpoints.exporting.comparison.measure import (
    ALONE,
    GRAPHS,
    OWN_FILE,
    PAIR,
    Row,
    Subject,
    cases,
    compare,
    small_model,
)
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.registry import list_variants
from fairseq_residuals.utils.documents import read_record
from fairseq_residuals.utils.tables import Cell, markdown_table
from modern_fairseq.atomic_write import atomic_write

TASKS = (PAIR, ALONE)
FORMATS = ("hf", *GRAPHS)
COLUMNS = ("logits", "tokens", "kB")
PACKAGES = ("fairseq_residuals", "torch", "transformers", "onnxruntime")


class Records:
    """The rows that were measured, in a file to go on from.

    Attributes:
        rows: in the order in which they were measured.
    """

    def __init__(self, path: Path | None) -> None:
        """Read what is there.

        Raises:
            UserError: the file is damaged, or its rows are of other versions.
        """
        self.path, self.versions = path, {name: version(name) for name in PACKAGES}
        self.rows: list[Row] = []
        if path is not None and path.exists():
            record = read_record(path, "versions", "rows")
            if record["versions"] != self.versions:
                raise UserError(f"{path} has rows of {record['versions']}: choose another --results")
            self.rows = [Row(**row) for row in record["rows"]]

    def add(self, row: Row) -> None:
        """Add a row, to the file as well."""
        self.rows.append(row)
        if self.path is not None:
            with atomic_write(self.path) as temporary:
                content = {"versions": self.versions, "rows": [asdict(row) for row in self.rows]}
                temporary.write_text(json.dumps(content, indent=1))

    def has(self, wiring: str, task: str, kind: str) -> bool:
        """Tell whether a row was measured."""
        return any((row.wiring, row.task, row.kind) == (wiring, task, kind) for row in self.rows)


def measure(records: Records, pairs: Iterable[tuple[str, str]], kinds: Sequence[str], until: float) -> bool:
    """Measure what is missing; return whether that was all of it.

    Args:
        until: of :func:`time.monotonic`, when no further row is begun.
    """
    with tempfile.TemporaryDirectory() as folder:
        for wiring, task in pairs:
            missing = [kind for kind in kinds if not records.has(wiring, task, kind)]
            if missing and time.monotonic() > until:
                return False
            if missing:
                subject = Subject(small_model(wiring, task=task))
            for kind in missing:
                records.add(compare(subject, kind, Path(folder) / f"{wiring}_{task}_{kind}"))
    return True


def table(rows: Sequence[Row], variants: Iterable[str], kinds: Sequence[str]) -> str:
    """Return one line for each wiring in Markdown: the worst of its pair and its language model in each format."""
    lines: list[list[Cell]] = []
    for variant in variants:
        own = [row for row in rows if row.wiring == variant]
        line: list[Cell] = [variant]
        for kind in kinds:
            line += _cells([row for row in own if row.kind == kind])
        lines.append(line)
    return markdown_table(["wiring", *(f"{kind}: {column}" for kind in kinds for column in COLUMNS)], lines)


def _cells(rows: Sequence[Row]) -> list[Cell]:
    if not rows:
        return [None] * len(COLUMNS)
    wrong, total = (sum(row.differing[i] for row in rows) for i in (0, 1))
    largest = max(row.difference for row in rows)
    # of language models where no encoder-decoder can be had
    size = next((row.size for row in rows if row.task == PAIR), rows[0].size)
    return [f"{largest:.1e}", f"{wrong} of {total}", round(size / 1000)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for, print the table, and return 0, or 1 if something is left or wrong."""
    parser = argparse.ArgumentParser(prog="comparison", description=__doc__.split("\n")[0])
    known = list_variants()
    parser.add_argument("--variants", nargs="+", default=known, choices=known, metavar="NAME", help="default: all")
    parser.add_argument("--formats", nargs="+", default=FORMATS, choices=FORMATS, metavar="FORMAT")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep what was measured here, to go on from")
    parser.add_argument("--minutes", type=float, metavar="N", help="stop after so many; the same command goes on")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS, metavar="TASK", help="default: both")
    args = parser.parse_args(argv)
    logging.disable(logging.INFO)
    until = float("inf") if args.minutes is None else time.monotonic() + 60 * args.minutes
    try:
        records = Records(args.results)
        whole = measure(records, cases(args.variants, args.tasks), args.formats, until)
    except UserError as error:
        print(f"comparison: error: {error}", file=sys.stderr)
        return 1
    print(table(records.rows, args.variants, args.formats))
    by_name = [f"{row.wiring} ({row.task}): {row.holder}" for row in records.rows if row.holder != OWN_FILE]
    print("", "Classes of transformers: " + "; ".join(by_name), sep="\n")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
