"""The recipes of this repository, read once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fairseq_residuals.lab.recipes.job import Job, Settings
from fairseq_residuals.lab.recipes.machine import Machine
from fairseq_residuals.lab.recipes.tables import Table, load_published
from fairseq_residuals.lab.recipes.tables.cells import Cell, TableRecipe, experiments, load_table

CONFIGS = Path(__file__).parents[2] / "configs"
TABLES = [f"{experiment}/{table}" for experiment, tables in experiments(CONFIGS).items() for table in tables]


def job_of(name: str, gpus: int = 1, **settings: object) -> Job:
    """The run of a configuration."""
    common = {"configs": CONFIGS, "data": Path("/data"), "out": Path("/out"), "machine": Machine(gpus)}
    return Job(Settings(**common | settings), name)  # type: ignore[arg-type]


@cache
def read_job(name: str) -> Job:
    """The same, as the recipe has it, on one GPU."""
    return job_of(name)


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
