"""Runs put together by what they are: several seeds of one thing make one line with a band."""

from __future__ import annotations

import glob
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_residuals.analysis.training_log import Log, read_log
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.core.registry import VARIANTS

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
    """What chooses its style in plots."""
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

    def best(self, metric: str, subset: str, choose: Callable[[Iterable[float]], float]) -> Point:
        """Return the best value of each run; ``x`` is the update at which the first run had it.

        Raises:
            UserError: a log lacks the metric, or has no number.
        """
        found = []
        for log in self.logs:
            curve = {update: value for update, value in log.curve(metric, subset).items() if math.isfinite(value)}
            if not curve:
                raise UserError(f"{log.path} has no finite {metric} of {subset}")
            value = choose(curve.values())
            found.append((next(update for update, v in curve.items() if v == value), value))
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


def chooser(metric: str, asked: str) -> Callable[[Iterable[float]], float]:
    """Return what makes the best of several values: ``min``, ``max``, or by the metric."""
    if asked == "auto":
        asked = "max" if metric.startswith(LARGER_IS_BETTER) else "min"
    return max if asked == "max" else min


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
        label, _, pattern = ("", "", name) if Path(name).exists() else name.rpartition("=")
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
    titles = {id(log): "/".join(_title(name) for name in log.wiring.split("/")) for log in logs}
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


def _title(name: str) -> str:
    return VARIANTS[name].title if name in VARIANTS else name
