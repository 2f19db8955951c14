"""``fairseq-residuals table``: what was published beside what was reproduced."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_residuals.lab.recipes.tables import find_table, load_published, read_records, render
from fairseq_residuals.lab.recipes.tables.published import PUBLISHED
from fairseq_residuals.lab.recipes.tables.reproduced import REPRODUCED
from fairseq_residuals.wirings.core.errors import UserError

HELP = "print a table of a paper with the numbers reproduced here beside it; without a name, list the tables"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", nargs="?", metavar="EXPERIMENT/TABLE", help="for example b2t/table1")
    parser.add_argument("--format", choices=("markdown", "csv"), default="markdown", help="(%(default)s)")
    parser.add_argument(
        "--published", type=Path, default=PUBLISHED, metavar="FILE.yaml", help="default: results/published.yaml"
    )
    parser.add_argument(
        "--reproduced", type=Path, default=REPRODUCED, metavar="FILE.csv", help="default: results/reproduced.csv"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: there is no such table, or a file is not what it should be.
    """
    tables = load_published(args.published)
    if args.reproduced != REPRODUCED and not args.reproduced.exists():
        raise UserError(f"--reproduced: there is no file {args.reproduced}")
    records = read_records(args.reproduced)
    if args.table is not None:
        print(render(find_table(args.table, tables), records, args.format), end="")
        return 0
    width = max(map(len, tables))
    for key, table in tables.items():
        cells = {(r.row, r.column) for r in records if r.key == key and r.row in table.expected}
        whole = len(table.expected) * len(table.scored)
        done = f"{len(cells)} of {whole} scores reproduced" if whole else "nothing to reproduce"
        print(f"{key:{width}}  {table.title} ({done})")
    return 0
