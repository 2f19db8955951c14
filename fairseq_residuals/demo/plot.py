"""Loss curves, as wide as a column of a paper."""

from __future__ import annotations

import statistics
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fairseq_residuals.demo.results import Summary
from fairseq_residuals.registry import VARIANTS

# Okabe and Ito's colours, which colour-blind readers tell apart
COLOURS = {"post_ln": "#D55E00", "pre_ln": "#0072B2", "b2t": "#009E73"}
MORE_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9")
MORE_DASHES = ("--", "-.", (0, (5, 1, 1, 1, 1, 1)))
REDUCTIONS: tuple[Callable[[Iterable[float]], float], ...] = (statistics.fmean, min, max)
Dashes = str | tuple[int, tuple[int, ...]]


def style(variant: str) -> tuple[str, Dashes]:
    """Colour and dashes of a variant: the same in every figure, whatever else is in it."""
    if variant in COLOURS:
        return COLOURS[variant], "-"
    number = zlib.crc32(variant.encode())
    return MORE_COLOURS[number % 3], MORE_DASHES[number // 3 % 3]


def plot_losses(path: Path, summaries: Sequence[Summary], unigram_loss: float) -> None:
    """Draws each variant's training loss over updates as a PNG: mean over seeds, band from least to most."""
    figure = Figure(figsize=(3.3, 2.5), dpi=300, layout="constrained")
    axes = figure.subplots()
    axes.axhline(unigram_loss, color="0.35", linewidth=0.9, linestyle=":", label="unigram loss")
    for summary in summaries:
        colour, dashes = style(summary.variant)
        updates = [update for update, _ in summary.results[0].training.curve]
        losses = list(zip(*([loss for _, loss in r.training.curve] for r in summary.results), strict=True))
        label = VARIANTS[summary.variant].title
        mean, low, high = ([f(at_update) for at_update in losses] for f in REDUCTIONS)
        axes.plot(updates, mean, color=colour, linestyle=dashes, linewidth=1.2, label=label)
        if len(summary.results) > 1:
            axes.fill_between(updates, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel("updates", fontsize=8)
    axes.set_ylabel("training loss (bits per token)", fontsize=8)
    axes.set_xlim(0, max(update for s in summaries for r in s.results for update, _ in r.training.curve))
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7, width=0.6)
    axes.grid(color="0.9", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)
    # outside of the axes, where it hides no curve
    figure.legend(loc="outside upper center", ncols=2, fontsize=7, frameon=False, handlelength=1.6)
    figure.savefig(path, format="png")  # the name may end in ".partial"
