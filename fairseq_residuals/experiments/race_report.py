"""A race while it runs, and what came of it."""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from rich.live import Live
from rich.table import Table

from fairseq_residuals.analysis import plots
from fairseq_residuals.analysis.tables import Cell
from fairseq_residuals.experiments.losses import TRAINED
from fairseq_residuals.experiments.race import Lane, Result
from fairseq_residuals.utils.progress import say

SECONDS_BETWEEN_LINES = 10.0
HEAD = ("model", "lr", "warm-up", "seeds", "trained", "train loss", "valid loss", "died at", "parameters", "s/run")
CSV_HEAD = ("model", "wiring", "lr", "warmup", "seed", "subset", "update", "loss", "unigram_loss")


class Display(Protocol):
    def __call__(self, number: int, update: int, loss: float) -> None:
        """Lane ``number`` has made ``update`` updates; ``loss`` since the last time."""


@contextmanager
def lines(lanes: Sequence[Lane], updates: int) -> Iterator[Display]:
    """For logs and pipes: a line now and then, and when a lane is done."""
    said = dict.fromkeys(range(len(lanes)), time.monotonic())

    def tell(number: int, update: int, loss: float) -> None:
        if update == updates or time.monotonic() - said[number] > SECONDS_BETWEEN_LINES:
            said[number] = time.monotonic()
            place = f"[{number + 1}/{len(lanes)}]"
            say(f"{place} {lanes[number].name}: update {update}/{updates}, {loss:.2f} bits per token")

    yield tell


@contextmanager
def live_table(lanes: Sequence[Lane], updates: int) -> Iterator[Display]:
    """For terminals: a table of all lanes, redrawn in place."""
    latest: dict[int, tuple[int, float]] = {}

    def made() -> Table:
        table = Table("model", "updates", "train loss (bits per token)", box=None)
        for number, lane in enumerate(lanes):
            update, loss = latest.get(number, (0, None))
            filled = round(20 * update / updates)
            bar = f"{'█' * filled}{'░' * (20 - filled)} {update}/{updates}"
            table.add_row(lane.name, bar, "" if loss is None else f"{loss:.2f}")
        return table

    with Live(made(), refresh_per_second=4, transient=True) as live:

        def tell(number: int, update: int, loss: float) -> None:
            latest[number] = update, loss
            live.update(made())

        yield tell


def display(lanes: Sequence[Lane], updates: int) -> AbstractContextManager[Display]:
    """What suits stdout."""
    return (live_table if sys.stdout.isatty() else lines)(lanes, updates)


Key = tuple[str, float, int]


def together(results: Sequence[Result]) -> dict[Key, list[Result]]:
    """By model, learning rate and warm-up: one result per seed. Models of one name are told apart by their options."""
    labels = {r.lane.source: r.label for r in results}
    if len(set(labels.values())) < len(labels):
        labels = {source: f"{label} ({source.name})" for source, label in labels.items()}
    found: dict[Key, list[Result]] = {}
    for result in results:
        key = (labels[result.lane.source], result.lane.lr, result.lane.warmup)
        found.setdefault(key, []).append(result)
    return found


def table(results: Sequence[Result]) -> list[list[Cell]]:
    """One row per model, learning rate and warm-up."""
    rows: list[list[Cell]] = []
    for (label, lr, warmup), seeds in together(results).items():
        alive = [r for r in seeds if r.died is None]
        died = ", ".join(str(r.died) for r in seeds if r.died is not None)
        rows.append(
            [
                label,
                lr,
                warmup,
                len(seeds),
                f"{sum(r.trained for r in seeds)} of {len(seeds)}",
                _spread([r.final for r in alive]),
                _spread([r.valid[-1][1] for r in alive]),
                died or None,
                seeds[0].parameters,
                statistics.fmean(r.seconds for r in seeds),
            ]
        )
    return rows


def _spread(values: list[float]) -> str | None:
    """Mean, and with several values the sample standard deviation."""
    if not values:
        return None
    mean = f"{statistics.fmean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.3f}"


def caption(args: Namespace, results: Sequence[Result]) -> str:
    """What the numbers are."""
    task = (
        f"corpus {args.data}" if args.data else f"{args.game} {args.tokens // 2 or 1} to {args.tokens} made-up tokens"
    )
    return (
        f"{args.updates} updates of {args.sentences} sentences, {task}; schedule {args.schedule}. Losses are negative"
        f" log-likelihoods in bits per token; the unigram loss is {results[0].unigram:.2f}, and trained is what came"
        f" below {TRAINED:.0%} of it. Mean ± standard deviation over the seeds that did not die."
    )


def draw(results: Sequence[Result]) -> Any:
    """Training losses: a panel for each learning rate and warm-up, a line for each seed."""
    settings = list(dict.fromkeys((r.lane.lr, r.lane.warmup) for r in results))
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
                if result.died is not None and x:
                    panel.plot(x[-1], y[-1], marker="x", markersize=5, color=styles[label]["color"])
        panel.axhline(results[0].unigram, color="0.35", linewidth=0.9, linestyle=":", label="unigram loss")
        title = f"lr {lr:g}, warm-up {warmup}" if len(settings) > 1 else ""
        plots.finish(panel, "updates", "training loss (bits/token)" if panel in [row[0] for row in axes] else "", title)
        panel.set_ylim(bottom=0)
    for panel in panels[len(settings) :]:
        panel.set_visible(False)
    plots.legend(figure, panels[0])
    return figure


def csv_rows(results: Sequence[Result]) -> list[list[Cell]]:
    """Every point of every curve; a run that died ends with an empty loss."""
    rows: list[list[Cell]] = []
    for (label, lr, warmup), seeds in together(results).items():
        for r in seeds:
            head: list[Cell] = [label, r.wiring, lr, warmup, r.lane.seed]
            for subset, curve in (("train", r.train), ("valid", r.valid)):
                rows += [[*head, subset, update, loss, r.unigram] for update, loss in curve]
            if r.died is not None:
                rows.append([*head, "train", r.died, None, r.unigram])
    return rows
