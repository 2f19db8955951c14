"""Loss curves, as wide as a column of a paper."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.recipes.demo.results import Summary
from fairseq_residuals.wirings.core.registry import VARIANTS

REDUCTIONS: tuple[Callable[[Iterable[float]], float], ...] = (statistics.fmean, min, max)


def plot_losses(path: Path, summaries: Sequence[Summary], unigram_loss: float) -> None:
    """Draw each variant's training loss over updates as a PNG: mean over seeds, band from least to most."""
    figure, ((axes,),) = plots.new_figure(height=2.5)
    axes.axhline(unigram_loss, color="0.35", linewidth=0.9, linestyle=":", label="unigram loss")
    for summary, line in zip(summaries, plots.line_styles(s.variant for s in summaries), strict=True):
        updates = [update for update, _ in summary.results[0].curve]
        losses = list(zip(*([loss for _, loss in r.curve] for r in summary.results), strict=True))
        mean, low, high = ([f(at_update) for at_update in losses] for f in REDUCTIONS)
        axes.plot(updates, mean, label=VARIANTS[summary.variant].title, **line)
        if len(summary.results) > 1:
            axes.fill_between(updates, low, high, color=line["color"], alpha=0.2, linewidth=0)
    axes.set_xlim(0, max(update for s in summaries for r in s.results for update, _ in r.curve))
    axes.set_ylim(bottom=0)
    plots.finish(axes, "updates", "training loss (bits per token)")
    plots.legend(figure, axes)
    figure.savefig(path, format="png")
