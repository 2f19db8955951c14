"""What came of a sweep: ``results.csv``, what is still to be run, and the table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from fairseq_residuals.lab.recipes.sweep import DIVERGED, FAILED, TRAINED, SweepResult, SweepRun
from fairseq_residuals.lab.recipes.tables.view import Summary
from fairseq_residuals.lab.utils.tables import Cell, csv_text, markdown_table, mean_and_spread, text_table
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.utils.documents import read_text
from modern_fairseq.atomic_write import atomic_write

HEADER = tuple(field.name for field in fields(SweepResult))
COLUMNS = ("valid_loss", "train_loss", "bleu", "cpu_seconds", "memory_mib")
DECIMALS = {"valid_loss": 3, "train_loss": 3, "bleu": 1, "cpu_seconds": 0, "memory_mib": 0}
HEAD = ("variant", "lr", "seeds", "valid loss", "train loss", "BLEU", "CPU s", "MiB", "diverged at lr (valid loss)")
EDGE = "*"


def read_results(path: Path) -> list[SweepResult]:
    """Return the results in the order of writing; none if there is no file.

    Raises:
        UserError: it is no file of results.
    """
    if not path.exists():
        return []
    lines = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        if tuple(lines.fieldnames or ()) != HEADER:
            raise UserError(f"{path} is no file of results: its first line has to be {','.join(HEADER)}")
        return [_read(line, f"{path}, line {lines.line_num}") for line in lines]
    except csv.Error as error:
        raise UserError(f"{path} is no CSV file: {error}") from None


def _read(line: dict[str, str], where: str) -> SweepResult:
    entries: dict[str, object] = dict(line)
    try:
        for name in ("lr", "unigram_loss", "cpu_seconds", "memory_mib"):
            entries[name] = float(line[name])
        for name in ("train_loss", "valid_loss", "bleu"):
            entries[name] = float(line[name]) if line[name] else None
        entries |= {"seed": int(line["seed"]), "updates": int(line["updates"])}
        if line["ended"] not in (TRAINED, DIVERGED, FAILED):
            raise ValueError(f"ended is {line['ended']!r}")
        return SweepResult(**entries)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise UserError(f"{where} is no result: {error}") from None


def write_results(path: Path, results: Iterable[SweepResult]) -> None:
    """Write all results; readers see the old file or the new one."""
    with atomic_write(path) as new:
        new.write_text(csv_text(HEADER, map(astuple, results)), encoding="utf-8", newline="")


def keeper(path: Path, results: list[SweepResult]) -> Callable[[SweepResult], None]:
    """Return what adds a result to ``results`` and to their file."""

    def keep(result: SweepResult) -> None:
        results.append(result)
        write_results(path, results)

    return keep


@dataclass(frozen=True)
class Line:
    """A row of the table: the runs of one wiring."""

    row: str
    grid: Sequence[SweepResult]
    """Those with the first seed."""
    chosen: Sequence[SweepResult]
    """Those with the best learning rate, by seed; none if all diverged or failed."""

    @property
    def lr(self) -> str | None:
        """Marked where a better one may lie beyond the grid."""
        if not self.chosen:
            return None
        lr, grid = self.chosen[0].lr, sorted(o.lr for o in self.grid)
        return f"{lr:g}{EDGE if lr in (grid[0], grid[-1]) else ''}"

    def summary(self, column: str) -> Summary:
        return Summary({o.seed: getattr(o, column) if o.ended == TRAINED else None for o in self.chosen})

    @property
    def order(self) -> tuple[float, str]:
        loss = self.summary("valid_loss").mean
        return (float("inf") if loss is None else loss, self.row)

    def cells(self) -> list[Cell]:
        summaries = {column: self.summary(column) for column in COLUMNS}
        seeds = summaries["valid_loss"]
        return [
            self.row,
            self.lr,
            f"{len(seeds.values)} of {len(self.chosen)}" if self.chosen else None,
            *(mean_and_spread(summaries[column].values, DECIMALS[column]) for column in COLUMNS),
            ", ".join(_place(o) for o in self.grid if o.ended == DIVERGED) or None,
        ]


def _place(diverged: SweepResult) -> str:
    loss = "" if diverged.valid_loss is None else f" ({diverged.valid_loss:.2f})"
    return f"{diverged.lr:g}{loss}"


def best_lr(grid: Iterable[SweepResult]) -> float | None:
    """Return the learning rate with the lowest validation loss, of those that trained."""
    losses = {o.lr: o.valid_loss for o in grid if o.ended == TRAINED and o.valid_loss is not None}
    return min(losses, key=lambda lr: losses[lr]) if losses else None


def lines(results: Sequence[SweepResult], first_seed: int) -> list[Line]:
    """Sort results, the best first, those without a result last."""
    found = []
    for row in dict.fromkeys(o.row for o in results):
        own = [o for o in results if o.row == row]
        grid = sorted((o for o in own if o.seed == first_seed), key=lambda o: o.lr)
        best = best_lr(grid)
        found.append(Line(row, grid, sorted((o for o in own if o.lr == best), key=lambda o: o.seed)))
    return sorted(found, key=lambda line: line.order)


def still_to_do(
    rows: Sequence[str], lrs: Sequence[float], seeds: Sequence[int], results: Sequence[SweepResult]
) -> list[SweepRun]:
    """Return what can be run now: every rate with the first seed, then each row's best with the others."""
    done = {o.run for o in results}
    grid = [SweepRun(row, lr, seeds[0]) for row in rows for lr in lrs]
    if missing := [run for run in grid if run not in done]:
        return missing
    best = {row: best_lr(o for o in results if (o.row, o.seed) == (row, seeds[0])) for row in rows}
    further = [SweepRun(row, lr, seed) for seed in seeds[1:] for row, lr in best.items() if lr is not None]
    return [run for run in further if run not in done]


def table(results: Sequence[SweepResult], first_seed: int, markdown: bool = False) -> str:
    """Return means ± standard deviations over the seeds that trained at each row's best learning rate."""
    rows = [line.cells() for line in lines(results, first_seed)]
    return markdown_table(HEAD, rows) if markdown else text_table(HEAD, rows)


def failures(results: Sequence[SweepResult]) -> list[str]:
    """Return a line for each run that ended in another way than by diverging."""
    return [f"{o.run.name} failed: {o.reason}" for o in results if o.ended == FAILED]
