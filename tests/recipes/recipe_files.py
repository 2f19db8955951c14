"""The recipes of this repository, read once for all tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.recipes.compose import NOTES
from fairseq_residuals.lab.recipes.job import Job, Settings
from fairseq_residuals.lab.recipes.tables import Table, load_published
from fairseq_residuals.lab.recipes.tables.cells import Cell, TableRecipe, experiments, load_table
from modern_fairseq.plain_yaml import read_yaml

CONFIGS = Path(__file__).parents[2] / "configs"
TABLES = [f"{experiment}/{table}" for experiment, tables in experiments(CONFIGS).items() for table in tables]


def job_of(name: str, gpus: int = 1, **settings: object) -> Job:
    """The run of a configuration."""
    common = {"configs": CONFIGS, "data": Path("/data"), "out": Path("/out"), "gpus": gpus}
    return Job(Settings(**common | settings), name)  # type: ignore[arg-type]


@cache
def read_job(name: str) -> Job:
    """The same, as the recipe has it, on one GPU."""
    return job_of(name)


@cache
def rows_of_all() -> dict[str, dict[str, Any]]:
    """Every row by its name, such as b2t/table1/18l_t_fixup."""
    return {
        f"{path.parent.name}/{name}": row
        for path in sorted(CONFIGS.glob("*/rows.yaml"))
        for name, row in read_yaml(path).items()
    }


@cache
def published() -> dict[str, Table]:
    return load_published()


@cache
def read_table(name: str) -> TableRecipe:
    return load_table(CONFIGS, name, published())


@cache
def uses() -> dict[str, dict[str, list[Cell]]]:
    """By configuration and table, the cells that it makes."""
    found: dict[str, dict[str, list[Cell]]] = {}
    for table in TABLES:
        for cell in read_table(table).cells:
            found.setdefault(cell.config, {}).setdefault(table, []).append(cell)
    return found


def kinds() -> list[str]:
    """Configurations, one of each kind: of those with the same base and schedule and the same keys, wirings aside."""
    found: dict[object, str] = {}
    rows = rows_of_all()
    for name in sorted(uses()):
        row = rows[name]
        settings = _leaves({key: value for key, value in row.items() if key not in NOTES})
        found.setdefault(tuple(settings), name)
    return list(found.values())


def _leaves(settings: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Each key of a row with the type of its value; a base, a schedule and a wiring with the value itself."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            itself = key in ("base", "schedule") or "residual" in key
            yield f"{prefix}{key}", value if itself else type(value)
