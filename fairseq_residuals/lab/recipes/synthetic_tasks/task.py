"""What a synthetic task is: where its data come from, and what of a paper's recipe is made smaller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.recipes.tables import Table
from fairseq_residuals.lab.recipes.tables.cells import Cell, TableRecipe

EXPERIMENT = "small"
AVERAGED = 3
SAVED = 8
"""Times that a training saves and validates."""


@dataclass(frozen=True)
class Sizes:
    """What decides how long it takes."""

    examples: int
    """For training; the held-out sets get a tenth each, at most ``HELD_OUT``."""
    updates: int
    subwords: int
    """Merges or pieces; in the language model the least number of occurrences of a word that is kept."""

    HELD_OUT = 300

    @property
    def held_out(self) -> int:
        return max(2, min(self.HELD_OUT, self.examples // 10))


@dataclass(frozen=True)
class Row:
    """A row of the table: a configuration under ``configs``, and what is changed of it."""

    config: str
    overrides: tuple[str, ...] = ()


Make = Callable[[Path, Sizes], Mapping[str, Any]]
"""Writes the archives into a folder, and returns what stand_in.json would say of them."""


def few_updates(updates: int) -> tuple[str, ...]:
    """Return the overrides of a training of so few updates that epochs do not count."""
    return (
        "dataset.num_workers=0",
        "common.log_interval=10",
        f"optimization.max_update={updates}",
        "optimization.update_freq=[1]",
        # checkpoints are saved, and averaged, by updates
        f"checkpoint.save_interval_updates={max(1, updates // SAVED)}",
        f"checkpoint.keep_interval_updates={AVERAGED}",
        "checkpoint.keep_last_epochs=-1",
        "checkpoint.no_epoch_checkpoints=true",
        f"recipe.average={{last:{AVERAGED},unit:update}}",
    )


@dataclass(frozen=True)
class Task:
    """Data that are made on the spot, and the runs that are compared on them."""

    name: str
    twin: str
    """The paper's table, as ``fairseq-residuals table`` calls it."""
    data: str
    """What the data are, for people."""
    sizes: Sizes
    corpus: Corpus
    make: Make
    rows: Mapping[str, Row]
    scores: Mapping[str, str]
    """By column, the name of the recipe's score."""
    metrics: tuple[str, ...]
    overrides: tuple[str, ...]
    """What is made smaller of the recipe, as hydra takes it."""
    check: Callable[[], object] | None = None
    """Raises UserError if what makes the data is not installed."""
    variant: str | None = None
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    schedule: Callable[[int], tuple[str, ...]] = few_updates
    """From the number of updates to what follows from it, as hydra takes it."""

    @property
    def table(self) -> Table:
        """The twin of the paper's table; nothing is published of it."""
        return Table(
            EXPERIMENT,
            self.name,
            columns=(*self.scores, *self.averages),
            rows={row: {} for row in self.rows},
            title=f"the small twin of {self.twin}",
            definition=self.data,
            source="not the paper's data, widths or updates: its numbers compare with each other only",
            metrics=self.metrics,
            averages=self.averages,
        )

    def recipe(self) -> TableRecipe:
        """Return the cells of all rows."""
        cells = tuple(
            Cell(name, column, row.config, score)
            for name, row in self.rows.items()
            for column, score in self.scores.items()
        )
        return TableRecipe(EXPERIMENT, self.name, cells, frozenset(), (1,), self.table)

    def all_overrides(self, row: str, updates: int) -> tuple[str, ...]:
        """Return what is changed of the paper's configuration for a row."""
        return (*self.schedule(updates), *self.overrides, *self.rows[row].overrides)


def compared(depth: str, stem: str) -> dict[str, Row]:
    """Return the rows of the three wirings that every table has at ``depth``, from the configurations ``stem_...``."""
    names = {"Post-LN": "post_ln", "Pre-LN": "pre_ln", "B2T": "b2t"}
    return {f"{depth}/{title}": Row(f"{stem}_{name}") for title, name in names.items()}


def narrow(width: int, ffn: int, heads: int = 4) -> tuple[str, ...]:
    """Return overrides that make encoder and decoder that wide."""
    return tuple(
        f"model.{side}_{name}={value}"
        for side in ("encoder", "decoder")
        for name, value in {"embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads}.items()
    )
