"""``fairseq-residuals diagnose LOG``: whether a run learned, and if not, what happened and what to try."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.training_log import TRAIN, VALID, Log, read_log
from fairseq_residuals.lab.look.verdicts import Diagnosis, Unigram, diagnose, losses
from fairseq_residuals.lab.utils.tables import Cell, few

HELP = "say whether a run learned, diverged, overfits or stopped, by its log; and what to try"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="what fairseq-train printed, best with --log-residual-stats N"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="binarized corpus of the run, whose training targets are counted"
    )
    add_output_flags(parser, "diagnosis")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: the file cannot be read, or is no log."""
    check_folder(args)
    log = read_log(args.log)
    found = diagnose(log, Unigram.counted(args.data, log.target) if args.data else None)
    figure = draw(log, found)
    print(found.text())
    if figure is None:
        print("the log has no numbers to plot")
    else:
        write(args, figure, ("series", "stack", "layer", "update", "value"), rows(log, found))
    return 0


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
            for (name, curve), colour in zip(curves.items(), (plots.BLUE, plots.ORANGE), strict=False):
                axis.plot(list(curve), list(curve.values()), label=name, color=colour, linewidth=1.2)
            for update in set(found.overflows):
                axis.axvline(update, color=plots.PINK, linewidth=0.6, linestyle=":")
        elif panel == "scale":
            axis.step(*zip(*found.scales, strict=True), where="post", color=plots.GREY, linewidth=1)
            axis.set_yscale("log")
        else:
            _draw_norms(axis, panel, found)
        label = {"loss": "loss (bits/token)", "scale": "loss scale"}.get(panel, f"{panel} gradient norm")
        plots.finish(axis, "", label)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), handlelength=1.2)
    axes[-1][0].set_xlabel("updates", fontsize=8)
    norms = [axis for panel, (axis,) in zip(panels, axes, strict=True) if panel in stacks]
    ends = [end for axis in norms for end in axis.get_ylim()]
    for axis in norms:
        axis.set_ylim(min(ends), max(ends))
    return figure


def _draw_norms(axis: Any, stack: str, found: Diagnosis) -> None:
    from matplotlib import colormaps

    layers = [layer for s, layer in found.norms if s == stack]
    first = min((update for update, _ in found.left.values()), default=None)
    culprits = [n for n in layers if first is not None and found.left.get((stack, n), (None,))[0] == first]
    for layer in layers:
        curve = found.norms[stack, layer]
        colour = plots.VERMILION if layer in culprits else colormaps["cividis"](layer / len(layers))
        label = f"layer {layer}" if layer in few(layers, 4) else None
        axis.plot(list(curve), list(curve.values()), color=colour, linewidth=0.9, label=label)
    if culprits and any(0 < v < math.inf for n in layers for v in found.norms[stack, n].values()):
        label = f"{len(culprits)} of {len(layers)} left here"
        axis.axvline(first, color=plots.VERMILION, linewidth=0.8, linestyle="--", label=label)
    axis.set_yscale("log")


def rows(log: Log, found: Diagnosis) -> list[list[Cell]]:
    """Return every number that is drawn: series, stack, layer, update, value."""
    curves: list[tuple[list[Cell], dict[int, float]]] = [
        ([f"loss {subset}", None, None], losses(log, subset)) for subset in (TRAIN, VALID)
    ]
    curves += [(["gradient norm", *place], curve) for place, curve in found.norms.items()]
    made: list[list[Cell]] = [[*name, *point] for name, curve in curves for point in curve.items()]
    made += [["loss scale", None, None, update, scale] for update, scale in found.scales]
    return made + [["overflow", None, None, update, None] for update in found.overflows]
