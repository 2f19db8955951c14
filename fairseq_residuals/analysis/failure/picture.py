"""A diagnosed run in a picture: its losses, the gradient norms of its layers, its loss scale."""

from __future__ import annotations

import math
from typing import Any

from fairseq_residuals.analysis import plots
from fairseq_residuals.analysis.failure.diagnosis import Diagnosis, losses
from fairseq_residuals.analysis.training_log import TRAIN, VALID, Log
from fairseq_residuals.utils.tables import Cell, few

HEAD = ("series", "stack", "layer", "update", "value")
MOST_CULPRITS = 3
"""Layers of a stack that are named one by one because they left their band first."""


def draw(log: Log, found: Diagnosis) -> Any:
    """Return the figure, with a panel for each thing that was logged; None where nothing was."""
    curves = {name: curve for name, curve in ((s, losses(log, s)) for s in (TRAIN, VALID)) if curve}
    stacks = list(dict.fromkeys(stack for stack, _ in found.norms))
    panels = [*(["loss"] if curves else []), *stacks, *(["scale"] if len(found.scales) > 1 else [])]
    if not panels:
        return None
    figure, axes = plots.new_figure(len(panels), 1, height=0.5 + 1.35 * len(panels), sharex=True)
    for panel, (axis,) in zip(panels, axes, strict=True):
        if panel == "loss":
            _draw_losses(axis, curves, found)
            plots.finish(axis, "", "loss (bits/token)")
        elif panel == "scale":
            axis.step(*zip(*found.scales, strict=True), where="post", color=plots.GREY, linewidth=1)
            axis.set_yscale("log")
            plots.finish(axis, "", "loss scale")
        else:
            _draw_norms(axis, panel, found)
            plots.finish(axis, "", f"{panel} gradient norm")
    axes[-1][0].set_xlabel("updates", fontsize=8)
    norms = [axis for panel, (axis,) in zip(panels, axes, strict=True) if panel in stacks]
    ends = [end for axis in norms for end in axis.get_ylim()]
    for axis in norms:
        axis.set_ylim(min(ends), max(ends))
    for (axis,) in axes:
        handles, labels = axis.get_legend_handles_labels()
        if labels:
            axis.legend(
                handles, labels, fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), handlelength=1.2
            )
    return figure


def _draw_losses(axis: Any, curves: dict[str, dict[int, float]], found: Diagnosis) -> None:
    for (name, curve), colour in zip(curves.items(), (plots.BLUE, plots.ORANGE), strict=False):
        axis.plot(list(curve), list(curve.values()), label=name, color=colour, linewidth=1.2)
        broken = [u for u, value in curve.items() if not math.isfinite(value)]
        if broken:
            axis.axvline(broken[0], color=plots.VERMILION, linewidth=0.8, label=f"{name} not finite")
    for i, update in enumerate(sorted(set(found.overflows))):
        axis.axvline(update, color=plots.PINK, linewidth=0.6, linestyle=":", label="overflow" if i == 0 else None)


def _draw_norms(axis: Any, stack: str, found: Diagnosis) -> None:
    from matplotlib import colormaps

    places = [place for place in found.norms if place[0] == stack]
    named = set(few([layer for _, layer in places], 4))
    first = min((update for update, _ in found.left.values()), default=None)
    culprits = [place for place in places if place in found.left and found.left[place][0] == first]
    if len(culprits) > MOST_CULPRITS:
        # a legend of all would leave no room for the curves
        number = f"{len(culprits)} of {len(places)} left here"
        axis.axvline(first, color=plots.VERMILION, linewidth=0.8, linestyle="--", label=number)
        culprits = []
    for _, layer in places:
        curve = found.norms[stack, layer]
        culprit = (stack, layer) in culprits
        colour = plots.VERMILION if culprit else colormaps["cividis"](layer / len(places))
        label = f"layer {layer}" + (", left first" if culprit else "") if culprit or layer in named else None
        axis.plot(list(curve), list(curve.values()), color=colour, linewidth=1.4 if culprit else 0.9, label=label)
    axis.set_yscale("log")


def rows(log: Log, found: Diagnosis) -> list[list[Cell]]:
    """Return every number that is drawn."""
    made: list[list[Cell]] = [
        [f"loss {subset}", None, None, update, value]
        for subset in (TRAIN, VALID)
        for update, value in losses(log, subset).items()
    ]
    made += [
        ["gradient norm", stack, layer, update, value]
        for (stack, layer), curve in found.norms.items()
        for update, value in curve.items()
    ]
    made += [["loss scale", None, None, update, scale] for update, scale in found.scales]
    return made + [["overflow", None, None, update, None] for update in found.overflows]


def layer_table(found: Diagnosis) -> tuple[tuple[str, ...], list[list[Cell]]]:
    """Return some layers, those that left their band among them."""
    chosen: list[list[Cell]] = []
    for stack in dict.fromkeys(stack for stack, _ in found.norms):
        layers = [layer for s, layer in found.norms if s == stack]
        kept = set(few(layers, 5)) | set([layer for s, layer in found.left if s == stack][:3])
        for layer in sorted(kept):
            values = list(found.norms[stack, layer].values())
            left = found.left.get((stack, layer))
            chosen.append([stack, layer, values[0], min(values), max(values), values[-1], left[0] if left else None])
    return ("stack", "layer", "first gradient norm", "least", "most", "last", "out of band since"), chosen
