"""A race while it runs, and what came of it."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.recipes.losses import TRAINED
from fairseq_residuals.lab.recipes.progress_bars import display
from fairseq_residuals.lab.recipes.race import RaceResult, RaceRun
from fairseq_residuals.lab.utils.tables import Cell, mean_and_spread

HEAD = ("model", "lr", "warm-up", "seeds", "trained", "train loss", "valid loss", "diverged at", "parameters", "s/run")
CSV_HEAD = ("model", "wiring", "lr", "warmup", "seed", "subset", "update", "loss", "unigram_loss")


Tell = Callable[[int, int, float], None]
"""Is told the number of a run, its updates, and its loss since the last time."""


@dataclass
class _Watched:
    """A run, as far as its progress goes."""

    name: str
    updates: int
    update: int = 0
    loss: float = math.nan

    @property
    def ended(self) -> bool:
        return self.update == self.updates

    def progress(self) -> tuple[int, str]:
        return self.update, f"{self.loss:.2f} bits per token" if self.update else "waiting"


@contextmanager
def shown(runs: Sequence[RaceRun], updates: int) -> Iterator[Tell]:
    """Show on stderr where the runs are."""
    watched = [_Watched(f"[{number}/{len(runs)}] {run.name}", updates) for number, run in enumerate(runs, start=1)]
    with display(watched) as refresh:

        def tell(number: int, update: int, loss: float) -> None:
            watched[number].update, watched[number].loss = update, loss
            refresh()

        yield tell


Key = tuple[str, float, int]


def together(results: Sequence[RaceResult]) -> dict[Key, list[RaceResult]]:
    """Group results by model, learning rate and warm-up; options tell models of one name apart."""
    labels = {r.run.source: r.label for r in results}
    if len(set(labels.values())) < len(labels):
        labels = {source: f"{label} ({source.name})" for source, label in labels.items()}
    found: dict[Key, list[RaceResult]] = {}
    for result in results:
        key = (labels[result.run.source], result.run.lr, result.run.warmup)
        found.setdefault(key, []).append(result)
    return found


def table(results: Sequence[RaceResult]) -> list[list[Cell]]:
    """Return one row per model, learning rate and warm-up."""
    rows: list[list[Cell]] = []
    for (label, lr, warmup), seeds in together(results).items():
        finite = [r for r in seeds if r.diverged_at is None]
        diverged = ", ".join(str(r.diverged_at) for r in seeds if r.diverged_at is not None)
        rows.append(
            [
                label,
                lr,
                warmup,
                len(seeds),
                f"{sum(r.trained for r in seeds)} of {len(seeds)}",
                mean_and_spread([r.final for r in finite], 3),
                mean_and_spread([r.valid[-1][1] for r in finite], 3),
                diverged or None,
                seeds[0].parameters,
                statistics.fmean(r.seconds for r in seeds),
            ]
        )
    return rows


def caption(args: Namespace, results: Sequence[RaceResult]) -> str:
    """Return what the numbers are."""
    task = (
        f"corpus {args.data}" if args.data else f"{args.game} {args.tokens // 2 or 1} to {args.tokens} synthetic tokens"
    )
    return (
        f"{args.updates} updates of {args.sentences} sentences, {task}; schedule {args.schedule}. Losses are negative"
        f" log-likelihoods in bits per token; the unigram loss is {results[0].unigram:.2f}, and trained is what came"
        f" below {TRAINED:.0%} of it. Mean ± standard deviation over the seeds that did not diverge."
    )


def draw(results: Sequence[RaceResult]) -> Any:
    """Draw training losses: a panel for each learning rate and warm-up, a line for each seed."""
    settings = list(dict.fromkeys((r.run.lr, r.run.warmup) for r in results))
    groups = together(results)
    labels = list(dict.fromkeys(label for label, _, _ in groups))
    wirings = {label: seeds[0].wiring for (label, _, _), seeds in groups.items()}
    styles = dict(zip(labels, plots.line_styles(wirings[label] for label in labels), strict=True))
    columns = min(len(settings), 3)
    rows = -(-len(settings) // columns)
    width = plots.COLUMN if columns == 1 else plots.PAGE
    figure, axes = plots.new_figure(rows, columns, width=width, height=0.4 + 1.9 * rows, sharex=True, sharey=True)
    panels = [panel for row in axes for panel in row]
    for panel, (lr, warmup) in zip(panels, settings, strict=False):
        for label in labels:
            for number, result in enumerate(groups.get((label, lr, warmup), [])):
                x, y = [u for u, _ in result.train], [loss for _, loss in result.train]
                panel.plot(x, y, label=label if number == 0 else None, alpha=0.75, **styles[label])
                if result.diverged_at is not None and x:
                    panel.plot(x[-1], y[-1], marker="x", markersize=5, color=styles[label]["color"])
        panel.axhline(results[0].unigram, color="0.35", linewidth=0.9, linestyle=":", label="unigram loss")
        title = f"lr {lr:g}, warm-up {warmup}" if len(settings) > 1 else ""
        plots.finish(panel, "updates", "training loss (bits/token)" if panel in [row[0] for row in axes] else "", title)
        panel.set_ylim(bottom=0)
    for panel in panels[len(settings) :]:
        panel.set_visible(False)
    plots.legend(figure, panels[0])
    return figure


def csv_rows(results: Sequence[RaceResult]) -> list[list[Cell]]:
    """Return every point of every curve; a run that diverged ends with an empty loss."""
    rows: list[list[Cell]] = []
    for (label, lr, warmup), seeds in together(results).items():
        for r in seeds:
            head: list[Cell] = [label, r.wiring, lr, warmup, r.run.seed]
            for subset, curve in (("train", r.train), ("valid", r.valid)):
                rows += [[*head, subset, update, loss, r.unigram] for update, loss in curve]
            if r.diverged_at is not None:
                rows.append([*head, "train", r.diverged_at, None, r.unigram])
    return rows
