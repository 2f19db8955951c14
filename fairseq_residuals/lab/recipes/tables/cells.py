"""Configurations that make the cells of tables: ``configs/<experiment>/tables.yaml``.

::

    table1:
      rows: {6L-6L/Post-LN: table1/6l_post_ln}          every column is the score of that name
    table5:
      rows: {'6': {En-De/Std: base_6, ...}}             a configuration per cell
      score: BLEU                                       where the score is not called as the column; also per column
    perplexity:
      columns: {Baseline: baseline}                     a configuration per column; the score is a curve over the rows
      score: curve                                      also per column

``seeds`` are the seeds over which the paper took the mean. A name that starts with / is another experiment's
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.recipes.tables import Table, find_table, load_published
from fairseq_residuals.wirings.core.errors import UserError
from modern_fairseq.plain_yaml import read_yaml


@dataclass(frozen=True)
class Cell:
    """One number of a table, and where it comes from."""

    row: str
    column: str
    config: str
    """Name of the configuration, as ``--config-name`` takes it."""
    score: str
    """A name under ``recipe.scores`` of the configuration."""
    key: str | None = None
    """Number of updates, where the score is a curve."""


@dataclass(frozen=True)
class TableRecipe:
    """All cells of a table that can be reproduced."""

    experiment: str
    name: str
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    published: Table

    def select(self, rows: Sequence[str] | None, columns: Sequence[str] | None = None) -> tuple[Cell, ...]:
        """Return the cells of some rows and columns, or of all.

        Args:
            rows: as the table calls them, or patterns such as ``18L-18L/*``; None: all.
            columns: likewise, such as ``En-De/*``.

        Raises:
            UserError: there is no such row, no such column, or no cell of both that can be reproduced.
        """
        chosen_rows = self._matching("row", rows, [cell.row for cell in self.cells])
        chosen_columns = self._matching("column", columns, [cell.column for cell in self.cells])
        chosen = tuple(cell for cell in self.cells if cell.row in chosen_rows and cell.column in chosen_columns)
        if not chosen:
            raise UserError(f"{self.experiment}/{self.name}: these rows have nothing in these columns")
        return chosen

    def _matching(self, kind: str, asked: Sequence[str] | None, there: Sequence[str]) -> set[str]:
        names = list(dict.fromkeys(there))
        if not asked:
            return set(names)
        chosen = set()
        for pattern in asked:
            meant = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
            chosen |= meant
            if not meant:
                reason = "was taken from elsewhere by the paper" if pattern in self.published.cited else "is not in it"
                valid = ", ".join(names)
                raise UserError(f"{self.experiment}/{self.name}: {pattern!r} {reason}; its {kind}s are {valid}")
        return chosen


def experiments(configs: Path) -> dict[str, dict[str, Any]]:
    """Return, by experiment, the content of its tables.yaml."""
    return {path.parent.name: read_yaml(path) for path in sorted(configs.glob("*/tables.yaml"))}


def load_table(configs: Path, name: str, tables: Mapping[str, Table] | None = None) -> TableRecipe:
    """Read a table's recipe.

    Args:
        configs: the folder of configurations.
        name: such as b2t/table1.
        tables: what was published; read from its file if it is not given.

    Raises:
        UserError: there is no such table, or nothing was published for one of its cells.
    """
    if not configs.is_dir():
        raise UserError(f"there is no folder {configs}: recipes come with a checkout of this repository")
    known = experiments(configs)
    experiment, _, table = name.partition("/")
    if table not in known.get(experiment, {}):
        names = [f"{e}/{t}" for e, tables in known.items() for t in tables]
        raise UserError(f"there are no recipes for {name!r} in {configs}; there are for {', '.join(names)}")
    spec, published = known[experiment][table], find_table(name, tables or load_published())
    cells = tuple(_cells(experiment, spec, published))
    for cell in cells:
        if cell.column not in published.rows.get(cell.row, {}):
            raise UserError(
                f"{name} as published has no {cell.row!r}, {cell.column!r}; a row of your own stands in"
                " results/published.yaml too, with null in each column"
            )
    seeds = tuple(spec.get("seeds", (None,)))
    return TableRecipe(experiment, table, cells, seeds, published)


def _cells(experiment: str, spec: Mapping[str, Any], published: Table) -> list[Cell]:
    def full(config: str) -> str:
        return config.removeprefix("/") if config.startswith("/") else f"{experiment}/{config}"

    if "columns" in spec:
        score = spec["score"]
        return [
            Cell(row, column, full(config), score[column] if isinstance(score, dict) else score, key=row)
            for column, config in spec["columns"].items()
            for row in published.rows
        ]
    wanted = [column for column in published.scored if column not in published.averages]
    cells = []
    for row, makers in spec["rows"].items():
        by_column = makers if isinstance(makers, dict) else dict.fromkeys(wanted, makers)
        for column, config in by_column.items():
            score = spec.get("score", column)
            cells.append(Cell(row, column, full(config), score[column] if isinstance(score, dict) else score))
    return cells
