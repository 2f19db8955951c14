"""The pictures of a report: legible in grey, lines labelled at their ends."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable
from typing import Any

from fairseq_residuals.lab.compare.schedule import Grid, mean_loss, rate_losses
from fairseq_residuals.lab.compare.verdict import Findings
from fairseq_residuals.lab.look import plots

LOSS = "validation loss (bits per token)"
FAR = 4.0
"""Multiple of the least loss above which the unigram loss would press all losses together."""


def draw(findings: Findings, unigram: float) -> dict[str, tuple[str, Any]]:
    """Return the pictures that the results suffice for, each with its title, by name."""
    drawn: dict[str, tuple[str, Any]] = {}
    if findings.results:
        known = f"grey: {findings.plan.baseline.name}; crosses: all seeds; dotted: the unigram loss"
        drawn |= {"rates": (f"Mean loss against rate ({known})", rates(findings, unigram))}
        drawn |= {"curves": ("Curves of the first seed", curves(findings, unigram))}
    if any(v.interval for v in findings.at_updates):
        drawn |= {"forest": (f"Difference from {findings.plan.baseline.name}", forest(findings))}
        drawn |= {"costs": ("Difference against cost", costs(findings))}
    return drawn


def svg(figure: Any) -> str:
    """Return a picture as an element of HTML."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def rates(findings: Findings, unigram: float) -> Any:
    """Draw the mean loss over the rate, a panel an entry, seeds as points; the baseline stands behind in grey."""
    entries = findings.plan.entries
    columns = min(4, len(entries))
    several = len(entries) > columns
    figure, panels = plots.new_panels(len(entries), columns, plots.PAGE, 1.7, 0.4, sharex=True, sharey=True)
    tried = sorted({result.lr for result in findings.results})
    behind = _means(rate_losses(findings.plan.baseline, findings.results))
    least = min((o.loss for o in findings.results), default=unigram)
    for number, (entry, panel) in enumerate(zip(entries, panels, strict=True)):
        panel.plot(*zip(*behind, strict=True), color="0.7", linewidth=2.5) if behind else None
        points = _means(rate_losses(entry, findings.results))
        panel.plot(*zip(*points, strict=True), color="black", marker="o", markersize=3) if points else None
        seeds = [(o.lr, o.loss) for o in findings.results if o.entry == entry.name and math.isfinite(o.loss)]
        panel.plot(*zip(*seeds, strict=True), "+", color="black", markersize=5) if seeds else None
        panel.axhline(unigram, color="0.4", linewidth=0.8, linestyle=":")
        panel.set_xscale("log", base=2)
        if unigram > FAR * least:
            panel.set_yscale("log", base=2)
            panel.yaxis.set_major_formatter("{x:.3g}")
        panel.set_xticks(tried, [f"{lr:g}" for lr in tried], rotation=60)
        last_row, first_column = number + columns >= len(entries), number % columns == 0
        panel.tick_params(labelbottom=last_row)
        y = LOSS if first_column and not several else ""
        plots.finish(panel, "rate" if last_row else "", y, _folded(entry.name))
    if several:
        figure.supylabel(LOSS, fontsize=8)
    return figure


def curves(findings: Findings, unigram: float) -> Any:
    """Draw each entry's validation loss over updates at its best rate, first seed, labelled at its end."""
    figure, ((axes,),) = plots.new_figure(width=plots.PAGE, height=3.2)
    ends = []
    last = 1
    drawn = [(entry, found[0]) for entry, found in findings.chosen.items() if found and found[0].points]
    for (entry, result), line in zip(drawn, plots.line_styles(entry.residual for entry, _ in drawn), strict=True):
        points = [(x, y) for x, y in result.points if math.isfinite(y)]
        axes.plot(*zip(*points, strict=True), **line)
        last = max(last, points[-1][0])
        ends.append((entry.name, *points[-1], line["color"]))
    axes.plot((0, last), (unigram, unigram), color="0.4", linewidth=0.8, linestyle=":")
    _label(axes, [*ends, ("unigram", last, unigram, "0.4")])
    axes.set_xlim(0, 1.3 * last)
    plots.finish(axes, "updates", LOSS)
    return figure


def forest(findings: Findings) -> Any:
    """Draw the differences from the baseline with their intervals, at equal updates and at equal seconds."""
    tested = [v for v in findings.at_updates if v.interval]
    figure, ((axes,),) = plots.new_figure(width=plots.PAGE, height=0.8 + 0.35 * len(tested))
    axes.axvline(0, color="0.4", linewidth=0.8)
    seconds = {v.entry: v for v in findings.at_seconds}
    for place, verdict in enumerate(reversed(tested)):
        for shown, offset, mark in ((verdict, 0.12, "o"), (seconds[verdict.entry], -0.12, "s")):
            if shown.interval is None:
                continue
            filled = "black" if shown.word != "not distinguishable" else "white"
            y = place + offset
            axes.plot(shown.interval, (y, y), color="black", linewidth=0.9)
            axes.plot(shown.difference, y, mark, color="black", markerfacecolor=filled, markersize=4)
    axes.set_yticks(range(len(tested)), [_folded(v.entry) for v in reversed(tested)])
    axes.set_ylim(-0.5, len(tested) - 0.5)
    noted = "circles: at equal updates; squares: at equal seconds; filled: distinguishable"
    plots.finish(axes, "difference in bits per token; less is better", title=noted)
    return figure


def costs(findings: Findings) -> Any:
    """Draw each entry's difference over what an update takes, as a multiple of the baseline's."""
    figure, ((axes,),) = plots.new_figure(width=plots.PAGE, height=2.6)
    axes.axhline(0, color="0.4", linewidth=0.8)
    points = [(findings.plan.baseline.name, 1.0, 0.0, "0.4")]
    for entry, verdict in zip(findings.plan.entries[1:], findings.at_updates, strict=True):
        if verdict.difference is not None:
            points.append((entry.name, findings.cost(entry), verdict.difference, "black"))
            axes.plot(*points[-1][1:3], "o", color="black", markersize=3)
    axes.plot(1, 0, "D", color="0.4", markersize=4)
    axes.margins(0.15)
    _label(axes, points)
    plots.finish(axes, f"seconds of a pass, as a multiple of {findings.plan.baseline.name}'s", "difference (bits)")
    return figure


def _label(axes: Any, points: Iterable[tuple[str, float, float, str]]) -> None:
    """Write names at the right of points (name, x, y, colour); one that would overlap another moves up."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    placed: list[tuple[float, float]] = []
    for name, x, y, colour in sorted(points, key=lambda point: point[2]):
        taken = [at for beside, at in placed if abs(beside - x) < 0.25 * (right - left)]
        at = max([y + 0.02 * (high - low), *(other + 0.07 * (high - low) for other in taken)])
        placed.append((x, at))
        axes.annotate(
            name,
            (x, y),
            xytext=(x + 0.03 * (right - left), at),
            fontsize=7,
            color=colour,
            va="bottom",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "relpos": (0, 0)},
        )


def _folded(name: str) -> str:
    return textwrap.fill(name, 24)


def _means(losses: Grid) -> list[tuple[float, float]]:
    means = ((lr, mean_loss(seeds)[1]) for lr, seeds in losses.items())
    return sorted((lr, mean) for lr, mean in means if math.isfinite(mean))
