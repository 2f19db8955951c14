"""What the trials of all variants came to: ``results.csv``, and the table made of it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fairseq_residuals.analysis.tables import Cell, markdown_table, text_table
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.experiments.synthetic_tasks.trial import DIVERGED, FAILED, TRAINED, Outcome, Trial
from fairseq_residuals.experiments.tables.view import Summary
from fairseq_residuals.utils.atomic_write import atomic_write

HEADER = tuple(field.name for field in fields(Outcome))
COLUMNS = ("valid_loss", "train_loss", "bleu", "cpu_seconds", "memory_mib")
DECIMALS = {"valid_loss": 3, "train_loss": 3, "bleu": 1, "cpu_seconds": 0, "memory_mib": 0}
HEAD = ("variant", "lr", "seeds", "valid loss", "train loss", "BLEU", "CPU s", "MiB", "diverged at lr (valid loss)")
EDGE = "*"


def read_outcomes(path: Path) -> list[Outcome]:
    """In the order of writing; none if there is no file.

    Raises:
        UserError: it is no file of outcomes.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != HEADER:
            raise UserError(f"{path} is no file of results: its first line has to be {','.join(HEADER)}")
        return [_read(line, f"{path}, line {lines.line_num}") for line in lines]


def _read(line: dict[str, str], where: str) -> Outcome:
    entries: dict[str, object] = dict(line)
    try:
        for name in ("lr", "unigram_loss", "cpu_seconds", "memory_mib"):
            entries[name] = float(line[name])
        for name in ("train_loss", "valid_loss", "bleu"):
            entries[name] = float(line[name]) if line[name] else None
        entries |= {"seed": int(line["seed"]), "updates": int(line["updates"])}
        if line["ended"] not in (TRAINED, DIVERGED, FAILED):
            raise ValueError(f"ended is {line['ended']!r}")
        return Outcome(**entries)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise UserError(f"{where} is no result: {error}") from None


def write_outcomes(path: Path, outcomes: Iterable[Outcome]) -> None:
    """All of them; readers see the old file or the new one."""
    with atomic_write(path) as new, new.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADER, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(outcome) for outcome in outcomes)


@dataclass(frozen=True)
class Line:
    """A row of the table: the trials of one wiring."""

    row: str
    grid: Sequence[Outcome]
    """Those with the first seed."""
    chosen: Sequence[Outcome]
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
            *(_mean(summaries[column], DECIMALS[column]) for column in COLUMNS),
            ", ".join(_place(o) for o in self.grid if o.ended == DIVERGED) or None,
        ]


def _place(diverged: Outcome) -> str:
    loss = "" if diverged.valid_loss is None else f" ({diverged.valid_loss:.2f})"
    return f"{diverged.lr:g}{loss}"


def _mean(summary: Summary, decimals: int) -> str | None:
    if summary.mean is None:
        return None
    spread = "" if summary.spread is None else f" ± {summary.spread:.{decimals}f}"
    return f"{summary.mean:.{decimals}f}{spread}"


def best_lr(grid: Iterable[Outcome]) -> float | None:
    """The learning rate with the lowest validation loss, of those that trained."""
    losses = {o.lr: o.valid_loss for o in grid if o.ended == TRAINED and o.valid_loss is not None}
    return min(losses, key=lambda lr: losses[lr]) if losses else None


def lines(outcomes: Sequence[Outcome], first_seed: int) -> list[Line]:
    """The best first, those without a result last."""
    found = []
    for row in dict.fromkeys(o.row for o in outcomes):
        own = [o for o in outcomes if o.row == row]
        grid = sorted((o for o in own if o.seed == first_seed), key=lambda o: o.lr)
        best = best_lr(grid)
        found.append(Line(row, grid, sorted((o for o in own if o.lr == best), key=lambda o: o.seed)))
    return sorted(found, key=lambda line: line.order)


def still_to_do(
    rows: Sequence[str], lrs: Sequence[float], seeds: Sequence[int], outcomes: Sequence[Outcome]
) -> list[Trial]:
    """What can be run now: every learning rate with the first seed, and once all these are there, the best of each row
    with the other seeds."""
    done = {o.trial for o in outcomes}
    grid = [Trial(row, lr, seeds[0]) for row in rows for lr in lrs]
    if missing := [trial for trial in grid if trial not in done]:
        return missing
    best = {row: best_lr(o for o in outcomes if (o.row, o.seed) == (row, seeds[0])) for row in rows}
    further = [Trial(row, lr, seed) for seed in seeds[1:] for row, lr in best.items() if lr is not None]
    return [trial for trial in further if trial not in done]


def table(outcomes: Sequence[Outcome], first_seed: int, markdown: bool = False) -> str:
    """Means ± standard deviations over the seeds that trained at the best learning rate of each row."""
    rows = [line.cells() for line in lines(outcomes, first_seed)]
    return markdown_table(HEAD, rows) if markdown else text_table(HEAD, rows)


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each run that ended in another way than by diverging."""
    return [f"{o.trial.name} failed: {o.reason}" for o in outcomes if o.ended == FAILED]
