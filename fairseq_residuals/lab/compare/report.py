"""The plan before training, and the report after it: ``report.md`` with pictures beside it, ``report.html`` alone."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_residuals.lab.compare import pictures
from fairseq_residuals.lab.compare.cells import DID_NOT_LEARN_ABOVE, Comparison, Result
from fairseq_residuals.lab.compare.checks import Start
from fairseq_residuals.lab.compare.entries import Entry
from fairseq_residuals.lab.compare.schedule import MOST_RATES, Plan, at_best_rate, is_edge, next_cells, rate_losses
from fairseq_residuals.lab.compare.verdict import (
    LEVEL,
    POWER,
    Verdict,
    decide,
    loss_at,
    noise_floor,
    smallest_difference,
)
from fairseq_residuals.lab.utils.tables import Cell, markdown_table, mean_and_spread, show, text_table
from modern_fairseq.atomic_write import atomic_write

START_HEAD = ("wiring", "parameters", "FLOPs", "passes/s", "kept MiB", "starts as baseline", "gradient", "bottom/top")
EDGE = "*"
SAME_SPEED = 0.05
"""Share by which timed passes differ by chance."""


@dataclass
class Findings:
    """What the results of a comparison say; losses in bits per token."""

    plan: Plan
    results: Sequence[Result]
    starts: Mapping[str, Start]
    chosen: dict[Entry, list[Result]] = field(init=False)
    """By entry, the results at its best rate."""
    at_updates: list[Verdict] = field(init=False)
    at_seconds: list[Verdict] = field(init=False)

    def __post_init__(self) -> None:
        self.chosen = {entry: at_best_rate(entry, self.results) for entry in self.plan.entries}
        others = self.plan.entries[1:]
        self.at_updates = decide({entry.name: self._pairs(entry) for entry in others})
        self.at_seconds = decide({entry.name: self._pairs(entry, self.cost(entry)) for entry in others})

    def losses(self, entry: Entry, share: float = 1.0) -> dict[int, float]:
        """Return losses by seed, of the runs that have one, after a share of their updates."""
        found = [o for o in self.chosen[entry] if math.isfinite(o.loss)]
        losses = {o.seed: o.loss if share == 1.0 else loss_at(o.points, share * o.updates) for o in found}
        return {seed: loss for seed, loss in losses.items() if loss is not None}

    def cost(self, entry: Entry) -> float:
        """Return the seconds of a pass as a multiple of the baseline's; 1 where they differ by less than noise."""
        ratio = self.starts[entry.name].seconds / self.starts[self.plan.baseline.name].seconds
        return 1.0 if abs(ratio - 1) < SAME_SPEED else ratio

    def _pairs(self, entry: Entry, cost: float = 1.0) -> list[tuple[float, float]]:
        """Return losses of an entry and of the baseline with the same seeds, in the time that the faster one takes."""
        own, reference = self.losses(entry, min(1.0, 1 / cost)), self.losses(self.plan.baseline, min(1.0, cost))
        return [(own[seed], reference[seed]) for seed in sorted(own.keys() & reference.keys())]

    def sentence(self, verdict: Verdict) -> str:
        """Return what a verdict at equal updates says, in words."""
        (entry,) = (e for e in self.plan.entries if e.name == verdict.entry)
        grid = rate_losses(entry, self.results)
        if not grid:
            return f"{entry.name}: not run."
        if not self.chosen[entry]:
            return f"{entry.name}: diverged at every rate from {min(grid):g} to {max(grid):g}."
        ended = [o.ended for o in self.chosen[entry]]
        failed = "" if set(ended) == {"learned"} else f" Of {len(ended)} seeds {ended.count('learned')} learned."
        text = f"{entry.name}: {verdict.word}"
        if verdict.difference is None or verdict.interval is None or verdict.p is None:
            return f"{text}: the test needs two seeds of both.{failed}"
        (low, high), than = verdict.interval, self.plan.baseline.name
        text += f" from {than}" if verdict.word == "not distinguishable" else f" than {than}"
        text += f": {verdict.difference:+.3f} bits per token (95%: {low:+.3f} to {high:+.3f}; p = {verdict.p:.2g}, "
        return f"{text}{verdict.pairs} seeds).{failed}"


@dataclass
class Section:
    """A part of the report: text, a table, a picture."""

    title: str
    lines: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    figure: Any = None
    """Picture, of matplotlib."""
    name: str = ""
    """Name of the picture's file, without its ending."""


def rule(comparison: Comparison, plan: Plan) -> list[str]:
    """Return the rule by which the verdicts come, which is printed before any training."""
    others, pairs = len(plan.entries) - 1, min(plan.seeds, plan.seeds_of(plan.baseline))
    smallest = smallest_difference(pairs, others)
    found = (
        f"A difference of {smallest:.1f} standard deviations of a run is found with {POWER:.0%} probability."
        if smallest is not None
        else "One seed decides nothing: this comparison has no verdict."
    )
    grid = (
        "Each wiring has its own rate: a grid by factors of two grows until the best has a worse neighbour on each side"
        f" (at most {MOST_RATES} rates)."
        if plan.grows
        else f"The rates are {', '.join(f'{lr:g}' for lr in plan.rates)}; the best of each wiring counts."
    )
    return [
        f"{grid} An asterisk marks a best rate at the edge of what was tried.",
        f"The test is a paired t-test of the final validation losses against {plan.baseline.name}'s with the same seeds"
        f" ({plan.seeds} seeds, {plan.seeds_of(plan.baseline)} of the baseline), two-sided, at {LEVEL:.0%} for all"
        f" {others} together (Holm). {found}",
        "Equal updates are equal tokens and equal batches. At equal seconds, the slower of two is read off its"
        f" validation curve where the faster ends; passes whose times differ by less than {SAME_SPEED:.0%} count as"
        " equal.",
        f"A run did not learn if its validation loss ends above {DID_NOT_LEARN_ABOVE:.0%} of the unigram loss"
        f" ({comparison.unigram_loss:.3f} bits). Runs that diverge or do not learn are results.",
    ]


def start_rows(starts: Mapping[str, Start]) -> list[tuple[Cell, ...]]:
    """Return the table of what entries are before they train; costs as multiples of the baseline's."""
    base = next(iter(starts.values()))
    return [
        (
            name,
            f"{s.parameters / base.parameters:.4f}",
            f"{s.flops / base.flops:.3f}",
            f"{base.seconds / s.seconds:.2f}",
            f"{s.memory_mib / base.memory_mib:.2f}",
            "yes" if s.starts_as_baseline else "no",
            f"{s.gradient:.3g}",
            f"{s.bottom_to_top:.3g}",
        )
        for name, s in starts.items()
    ]


def start_note(starts: Mapping[str, Start]) -> str:
    """Return what the table of :func:`start_rows` is relative to."""
    name, base = next(iter(starts.items()))
    return (
        f"Parameters, FLOPs, speed and memory kept for the backward pass are multiples of {name}'s"
        f" ({base.parameters:,}, {base.flops:.3g} a pass, {1 / base.seconds:.3g} passes a second,"
        f" {base.memory_mib:.0f} MiB). Gradient norms are at the start; the last column is the decoder's lowest layer"
        " over its highest. No entry looks ahead."
    )


def plan_text(
    comparison: Comparison, plan: Plan, starts: Mapping[str, Start], estimates: Mapping[str, float], jobs: int
) -> str:
    """Return the plan: what is compared, how it is decided, what it costs on this machine."""
    extra = 2 if plan.grows else 0
    runs = {e: len(plan.rates) + extra + plan.seeds_of(e) - 1 for e in plan.entries}
    hours = sum(number * estimates[entry.name] for entry, number in runs.items()) / 3600
    rung = comparison.rung
    return "\n".join(
        [
            f"{comparison.task.name}: {comparison.task.about}. {comparison.depth} layers, {rung.dim} wide, "
            f"{rung.updates:,} updates of {rung.tokens:,} tokens.",
            "",
            text_table(START_HEAD, start_rows(starts)),
            start_note(starts),
            "",
            *rule(comparison, plan),
            "",
            f"About {sum(runs.values())} runs of {min(estimates.values()):.0f} to {max(estimates.values()):.0f}"
            f" seconds, {jobs} at a time: {hours / jobs:.1f} hours. Everything is in {comparison.folder}.",
        ]
    )


def sections(
    comparison: Comparison, plan: Plan, results: Sequence[Result], starts: Mapping[str, Start]
) -> list[Section]:
    """Return the report of what is finished."""
    findings = Findings(plan, results, starts)
    rung, noise = comparison.rung, noise_floor(findings.losses(plan.baseline))
    parts = [
        Section(
            f"Wirings compared on {comparison.task.name}",
            [
                f"{comparison.task.about}; {comparison.depth} layers, {rung.dim} wide, {rung.updates:,} updates of"
                f" {rung.tokens:,} tokens. Losses in bits per target token on validation data; the unigram loss is"
                f" {comparison.unigram_loss:.2f}.",
                *map(findings.sentence, findings.at_updates),
                f"Noise floor: {plan.baseline.name} varies by {noise:.4f} bits (standard deviation over"
                f" {len(findings.losses(plan.baseline))} seeds)."
                if noise is not None
                else f"Noise floor: unknown, {plan.baseline.name} has fewer than two seeds.",
            ],
        ),
        Section("Losses", (), LOSS_HEAD, [_loss_row(findings, entry) for entry in plan.entries]),
        Section(
            f"Against {plan.baseline.name}",
            ["Differences of validation losses; less than 0 is better."],
            VERDICT_HEAD,
            [
                (v.entry, at, v.pairs, _signed(v.difference), _interval(v), v.p, v.word)
                for at, verdicts in (("updates", findings.at_updates), ("seconds", findings.at_seconds))
                for v in verdicts
            ],
        ),
        Section("The rule, as printed before training", rule(comparison, plan)),
    ]
    if results:
        parts += [
            Section("Loss against rate", figure=pictures.rates(findings, comparison.unigram_loss), name="rates"),
            Section("Curves", figure=pictures.curves(findings, comparison.unigram_loss), name="curves"),
        ]
    if any(v.interval for v in findings.at_updates):
        parts += [
            Section(f"Difference from {plan.baseline.name}", figure=pictures.forest(findings), name="forest"),
            Section("Cost against gain", figure=pictures.costs(findings), name="costs"),
        ]
    parts.append(Section("Before training", [start_note(starts)], START_HEAD, start_rows(starts)))
    parts.append(Section("Other ends", _other_ends(results) or ["All runs learned."]))
    left = next_cells(plan, results)
    missing = ", ".join(cell.name for cell in left[:20])
    parts.append(Section("Not run", [f"{missing}{', ...' if len(left) > 20 else ''}" if left else "Nothing is left."]))
    parts.append(Section("Made by", _made_by(comparison, results)))
    return parts


LOSS_HEAD = (
    *("wiring", "rate", "seeds", "valid loss", "train loss", "score", "CPU s", "MiB", "parameters"),
    "did not learn or diverged at",
)
VERDICT_HEAD = ("wiring", "at equal", "seeds", "difference", "95% interval", "p (Holm)", "verdict")


def _loss_row(findings: Findings, entry: Entry) -> tuple[Cell, ...]:
    chosen, grid = findings.chosen[entry], rate_losses(entry, findings.results)
    own = [o for o in findings.results if o.entry == entry.name]
    bad = sorted({o.lr for o in own if o.ended != "learned"})

    def of(name: str, digits: int) -> str | None:
        return mean_and_spread([v for o in chosen if (v := getattr(o, name)) is not None], digits)

    rate = f"{chosen[0].lr:g}{EDGE if len(grid) > 1 and is_edge(grid) else ''}" if chosen else None
    parameters = next((o.parameters for o in own if o.parameters), None)
    return (
        *(entry.name, rate, len(chosen), of("valid_loss", 2 if len(chosen) < 2 else 3), of("train_loss", 2)),
        *(of("score", 1), of("cpu_seconds", 0), of("memory_mib", 0)),
        *(parameters, ", ".join(f"{lr:g}" for lr in bad) or None),
    )


def _signed(value: float | None) -> str | None:
    return None if value is None else f"{value:+.4f}"


def _interval(verdict: Verdict) -> str | None:
    return None if verdict.interval is None else " to ".join(f"{x:+.4f}" for x in verdict.interval)


def _other_ends(results: Sequence[Result]) -> list[str]:
    return [f"{o.entry}, lr {o.lr:g}, seed {o.seed}: {o.ended}; {o.reason}." for o in results if o.ended != "learned"]


def _made_by(comparison: Comparison, results: Sequence[Result]) -> list[str]:
    def all_of(name: str) -> str:
        return ", ".join(sorted({getattr(o, name) for o in results if getattr(o, name)}))

    return [
        f"{len(results)} runs, {sum(o.hours for o in results):.2f} hours of them together; runs.csv has a line for"
        " each, runs/ the logs.",
        f"Data {comparison.data_digest}; settings {comparison.shared}; commit {all_of('commit')}.",
        f"torch {all_of('torch')} on {all_of('device')}.",
        *([f"Scores: {all_of('signature')}."] if all_of("signature") else []),
    ]


def write(comparison: Comparison, plan: Plan, results: Sequence[Result], starts: Mapping[str, Start]) -> str:
    """Write the report, and return its first part and where it is."""
    parts = sections(comparison, plan, results, starts)
    for part in parts:
        if part.figure is not None:
            with atomic_write(comparison.folder / f"{part.name}.png") as new:
                part.figure.savefig(new, format="png")
    for name, text in (("report.md", _markdown(parts)), ("report.html", _html(parts))):
        with atomic_write(comparison.folder / name) as new:
            new.write_text(text, encoding="utf-8")
    return f"\n{_markdown(parts[:3])}\nWritten to {comparison.folder}: report.html, report.md, runs.csv."


def _markdown(parts: Sequence[Section]) -> str:
    blocks = []
    for number, part in enumerate(parts):
        blocks.append(f"{'#' if number == 0 else '##'} {part.title}")
        blocks += ["\n".join(f"- {line}" for line in part.lines)] if part.lines else []
        blocks += [markdown_table(part.head, part.rows)] if part.rows else []
        blocks += [f"![{part.title}]({part.name}.png)"] if part.figure is not None else []
    return "\n\n".join(blocks) + "\n"


_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;font-size:13px}"
    "td,th{padding:.2em .6em;border-bottom:1px solid #ccc;text-align:left}"
    "svg{max-width:100%;height:auto}.wide{overflow-x:auto}"
)


def _html(parts: Sequence[Section]) -> str:
    """Return one page that needs nothing but itself."""
    title = html.escape(parts[0].title)
    body = []
    for number, part in enumerate(parts):
        level = "h1" if number == 0 else "h2"
        body.append(f"<{level}>{html.escape(part.title)}</{level}>")
        body += [f"<p>{html.escape(line)}</p>" for line in part.lines]
        if part.rows:
            rows = [_row("th", part.head), *(_row("td", map(show, row)) for row in part.rows)]
            body.append(f'<div class="wide"><table>{"".join(rows)}</table></div>')
        if part.figure is not None:
            body.append(pictures.svg(part.figure))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{chr(10).join(body)}\n</body></html>\n"
    )


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
