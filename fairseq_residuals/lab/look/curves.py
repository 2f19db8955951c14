"""``fairseq-residuals curves [LABEL=]LOG...``: what training logged, over updates or against depth.

Several seeds of one thing make one line with a band.
"""

from __future__ import annotations

import argparse
import glob
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.subjects import labelled
from fairseq_residuals.lab.look.training_log import Log, read_log
from fairseq_residuals.lab.utils.tables import Cell, markdown_table
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS

_ATTEMPT = re.compile(r"train\.\d{3,}\.log")
LARGER_IS_BETTER = ("bleu", "sacrebleu", "tokenized_bleu", "compound_bleu", "accuracy", "rouge")


@dataclass(frozen=True)
class Point:
    """One value of each run of a group, put together."""

    x: int
    mean: float
    low: float
    high: float
    runs: int


@dataclass
class Group:
    """Runs that differ in their seeds only, or that the user gave one name."""

    label: str
    wiring: str
    """Name that chooses the style of the group in plots: the wiring, or the label where the logs name none."""
    logs: list[Log]

    def points(self, metric: str, subset: str) -> list[Point]:
        """Return points over updates that every run has logged; a value that is not a number makes its point one.

        Raises:
            UserError: a log lacks the metric, or no update was logged by all runs.
        """
        curves = [log.curve(metric, subset) for log in self.logs]
        shared = [update for update in curves[0] if all(update in curve for curve in curves)]
        if not shared:
            raise UserError(
                f"the runs of {self.label} have logged {metric} of {subset} at different updates: give each a name of"
                " its own, NAME=FILE"
            )
        return [_point(update, [curve[update] for curve in curves]) for update in shared]

    def best(self, metric: str, subset: str) -> Point:
        """Return the best value of each run; ``x`` is the update at which the first run had it.

        Raises:
            UserError: a log lacks the metric, or has no number.
        """
        choose: Callable[..., int] = max if metric.startswith(LARGER_IS_BETTER) else min
        found = []
        for log in self.logs:
            curve = {update: value for update, value in log.curve(metric, subset).items() if math.isfinite(value)}
            if not curve:
                raise UserError(f"{log.path} has no finite {metric} of {subset}")
            at = choose(curve, key=lambda update, curve=curve: curve[update])
            found.append((at, curve[at]))
        return _point(found[0][0], [value for _, value in found])

    def depth(self, stacks: Sequence[str]) -> int:
        """Return layers of these stacks together.

        Raises:
            UserError: a log does not say, or the runs differ.
        """
        depths = {sum(log.layers.get(stack, 0) for stack in stacks) for log in self.logs}
        if len(depths) > 1 or not min(depths):
            raise UserError(f"the logs of {self.label} do not say how many layers the {' and '.join(stacks)} have")
        return depths.pop()


def _point(x: int, values: list[float]) -> Point:
    if not all(map(math.isfinite, values)):
        return Point(x, math.nan, math.nan, math.nan, len(values))
    return Point(x, statistics.fmean(values), min(values), max(values), len(values))


def groups(names: Sequence[str], by_depth: bool = False) -> list[Group]:
    """Read ``[LABEL=]FILE``, FILE perhaps with wildcards, and put what belongs together into one group.

    ``train.001.log``, ``train.002.log``, ... of one folder are attempts at one run, as `reproduce` writes them.

    Args:
        by_depth: runs of one label are told apart by their depths.

    Raises:
        UserError: no such file, or runs that nothing tells apart.
    """
    runs: dict[tuple[str, Path | int], list[Path]] = {}
    for name in names:
        label, pattern = labelled(name)
        for path in map(Path, sorted(glob.glob(pattern)) or [pattern]):
            run = path.parent if _ATTEMPT.fullmatch(path.name) else len(runs)
            runs.setdefault((label, run), []).append(path)
    given = [(label, read_log(*sorted(set(paths)))) for (label, _), paths in runs.items()]
    labels = _automatic([log for label, log in given if not label], by_depth)
    found: dict[tuple, Group] = {}
    for label, log in given:
        shown = label or labels[id(log)]
        layers = tuple(sorted(log.layers.items())) if by_depth else ()
        group = found.setdefault((shown, layers), Group(shown, log.wiring or shown, []))
        same = next((o for o in group.logs if not label and (o.seed is None or o.seed == log.seed)), None)
        if same is not None:
            raise UserError(
                f"nothing in {same.path} and {log.path} tells their runs apart: name them, as in"
                f" 'one={same.path}' 'two={log.path}'"
            )
        group.logs.append(log)
    return list(found.values())


def _automatic(logs: list[Log], by_depth: bool) -> dict[int, str]:
    """Return labels by ``id`` of the log: its variant's title and whatever else differs; else its folder or file."""
    known = {name: variant.title for name, variant in VARIANTS.items()}
    titles = {id(log): "/".join(known.get(name, name) for name in log.wiring.split("/")) for log in logs}
    depths = {id(log): "-".join(str(n) for _, n in sorted(log.layers.items(), reverse=True)) for log in logs}
    labels = {}
    for log in logs:
        title, alike = titles[id(log)], [o for o in logs if titles[id(o)] == titles[id(log)]]
        if not title:
            labels[id(log)] = log.path.parent.name or log.path.stem
            continue
        if not by_depth and len({depths[id(o)] for o in logs}) > 1:
            title += f" {depths[id(log)]}"
        own = log.options - log.options.intersection(*(o.options for o in alike))
        everywhere = {text for stack, text in own if all((other, text) in own for other in log.layers)}
        told = everywhere | {f"{stack} {text}" for stack, text in own if text not in everywhere}
        told |= {choice for choice in log.choices if any(o.choices and choice not in o.choices for o in alike)}
        labels[id(log)] = title + (f" ({', '.join(sorted(told))})" if told else "")
    return labels


HELP = "plot the loss, or another metric, from logs of fairseq-train; seeds as bands; or the best value against depth"
AGAINST = {"updates": (), "layers": ("encoder", "decoder"), "encoder-layers": ("encoder",)}
UNITS = {
    "loss": "loss (bits per token)",
    "nll_loss": "NLL (bits per token)",
    "ppl": "perplexity",
    "bleu": "BLEU",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="[LABEL=]LOG",
        help="logs of fairseq-train (any --log-format, also by hydra; train.001.log, train.002.log, ... of one folder"
        " are one run) or fairseq-generate (metric bleu, subset test); wildcards are expanded. Runs that differ in"
        " their seeds alone make one line with a band from the least to the most; without LABEL, the log says what the"
        " run was",
    )
    parser.add_argument(
        "--metric", default="loss", metavar="NAME", help="as it is logged: nll_loss, ppl, ... (%(default)s)"
    )
    parser.add_argument(
        "--subset", nargs="+", default=["train", "valid"], metavar="NAME", help="one panel for each (train valid)"
    )
    parser.add_argument("--against", choices=tuple(AGAINST), default="updates", help="x axis (%(default)s)")
    parser.add_argument(
        "--wide",
        metavar="HEAD",
        help="CSV with a row per x and a column per label, under HEAD and the labels; for one subset; means over seeds",
    )
    add_output_flags(parser, "curves")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: a log cannot be read or lacks the metric, or runs cannot be told apart."""
    check_folder(args)
    if args.wide and len(args.subset) > 1:
        raise UserError(f"--wide needs one --subset, not {' '.join(args.subset)}")
    over_depth = args.against != "updates"
    found = groups(args.logs, by_depth=over_depth)
    series = {subset: _lines(args, found, subset) for subset in args.subset}
    figure, axes = plots.new_figure(1, len(series), width=plots.COLUMN if len(series) == 1 else plots.PAGE, sharey=True)
    for panel, (subset, lines) in zip(axes[0], series.items(), strict=True):
        _draw(args, panel, lines)
        x = f"{' + '.join(AGAINST[args.against])} layers" if over_depth else "updates"
        y = UNITS.get(args.metric, args.metric) if panel is axes[0][0] else ""
        plots.finish(panel, x, y, subset if len(series) > 1 else "", whole_x=over_depth)
    plots.legend(figure, axes[0][0])
    print(markdown_table(*_summary(args, found), left=3))
    for group in found if not over_depth else ():
        ends = sorted(max(log.curve(args.metric, args.subset[0])) for log in group.logs)
        if ends[0] < ends[-1]:
            print(f"{group.label}: the line ends at update {ends[0]} with the shortest run; the longest has {ends[-1]}")
    write(args, figure, *_numbers(args, series))
    return 0


Lines = dict[tuple[str, str], list[Point]]
"""Points of each line, by label and wiring."""


def _lines(args: argparse.Namespace, found: Sequence[Group], subset: str) -> Lines:
    lines: Lines = {}
    for group in found:
        if args.against == "updates":
            points = group.points(args.metric, subset)
        else:
            points = [replace(group.best(args.metric, subset), x=group.depth(AGAINST[args.against]))]
        lines.setdefault((group.label, group.wiring), []).extend(points)
    return {key: sorted(points, key=lambda p: p.x) for key, points in lines.items()}


def _draw(args: argparse.Namespace, panel: Any, lines: Lines) -> None:
    styles = plots.line_styles(wiring for _, wiring in lines)
    for ((label, _), points), style in zip(lines.items(), styles, strict=True):
        x = [p.x for p in points]
        if args.against != "updates" or len(points) == 1:
            style = style | {"marker": style["marker"] or "o", "markevery": None}
        panel.plot(x, [p.mean for p in points], label=label, **style)
        if any(p.runs > 1 for p in points):
            low, high = [p.low for p in points], [p.high for p in points]
            panel.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _summary(args: argparse.Namespace, found: Sequence[Group]) -> tuple[Sequence[str], list[list[Cell]]]:
    rows: list[list[Cell]] = []
    for subset in args.subset:
        for group in found:
            best = group.best(args.metric, subset)
            curves = [log.curve(args.metric, subset) for log in group.logs]
            shared = set(curves[0]).intersection(*curves)  # a mean of values at other updates would be none's
            ends = [max(shared) if shared else max(curve) for curve in curves]
            layers = "-".join(str(n) for _, n in sorted(group.logs[0].layers.items(), reverse=True)) or "-"
            last = fmean(curve[end] for curve, end in zip(curves, ends, strict=True))
            rows.append([group.label, layers, subset, best.runs, best.mean, best.low, best.high, last, min(ends)])
    return ("run", "layers", "subset", "runs", "best", "from", "to", "last", "at update"), rows


def _numbers(args: argparse.Namespace, series: dict[str, Lines]) -> tuple[Sequence[str], list[list[Cell]]]:
    x = "update" if args.against == "updates" else args.against.replace("-", "_")
    if args.wide:
        (lines,) = series.values()
        by_label = {label: {p.x: p.mean for p in points} for (label, _), points in lines.items()}
        places = sorted({p.x for points in lines.values() for p in points})
        return (args.wide, *by_label), [[place, *(v.get(place) for v in by_label.values())] for place in places]
    rows: list[list[Cell]] = [
        [label, wiring, subset, p.x, p.mean, p.low, p.high, p.runs]
        for subset, lines in series.items()
        for (label, wiring), points in lines.items()
        for p in points
    ]
    return ("label", "wiring", "subset", x, args.metric, "low", "high", "runs"), rows
