"""The plan before training, and the report after it: ``report.md`` with pictures beside it, ``report.html`` alone."""

from __future__ import annotations

import html
import math
import re
import statistics
from collections.abc import Mapping, Sequence

from markdown_it import MarkdownIt

from fairseq_residuals.lab.compare import pictures
from fairseq_residuals.lab.compare.cells import Comparison, Result
from fairseq_residuals.lab.compare.checks import Start
from fairseq_residuals.lab.compare.entries import Entry, own_files
from fairseq_residuals.lab.compare.schedule import MOST_RATES, Plan, is_edge, next_cells, rate_losses, runs_left
from fairseq_residuals.lab.compare.verdict import LEVEL, POWER, SAME_SPEED, Findings, smallest_difference
from fairseq_residuals.lab.look.diagnose import DID_NOT_LEARN_ABOVE
from fairseq_residuals.lab.utils.tables import Cell, markdown_table, mean_and_spread
from modern_fairseq.atomic_write import atomic_write

EDGE = "*"
RULE = "## The rule, as printed before training"
"""Heading below what the terminal shows."""


def rule(comparison: Comparison, plan: Plan) -> list[str]:
    """Return the rule by which the verdicts come, which is printed before any training."""
    others = len(plan.entries) - 1
    smallest = smallest_difference(plan.seeds, others)
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
    chosen = (
        " The best has the least mean loss of its seeds; a rate within a standard error of it is trained with as many."
        if plan.adds_seeds
        else ""
    )
    return [
        f"{grid}{chosen} An asterisk marks a best rate at the edge of what was tried.",
        f"The test is a paired t-test of the final validation losses against {plan.baseline.name}'s with the same seeds"
        f" ({plan.seeds} of the baseline's {plan.seeds_of(plan.baseline)}), two-sided, at {LEVEL:.0%} for all"
        f" {others} together (Holm). {found}",
        "Equal updates are equal tokens and equal batches. At equal seconds, the slower of two is read off its"
        f" validation curve where the faster ends; passes whose times differ by less than {SAME_SPEED:.0%} count as"
        " equal.",
        f"A run did not learn if its validation loss ends above {DID_NOT_LEARN_ABOVE:.0%} of the unigram loss"
        f" ({comparison.unigram_loss:.3f} bits). Runs that diverge or do not learn are results.",
    ]


def start_text(starts: Mapping[str, Start]) -> str:
    """Return what entries are before they train: a table, with costs as multiples of the baseline's, and a note."""
    name, base = next(iter(starts.items()))
    head = ("wiring", "parameters", "FLOPs", "passes/s", "kept MiB", "starts as baseline", "gradient", "bottom/top")
    rows = [
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
    return (
        f"Parameters, FLOPs, speed and memory kept for the backward pass are multiples of {name}'s"
        f" ({base.parameters:,}, {base.flops:.3g} a pass, {1 / base.seconds:.3g} passes a second,"
        f" {base.memory_mib:.0f} MiB). Gradient norms are at the start; the last column is the decoder's lowest layer"
        f" over its highest. No entry looks ahead.\n\n{markdown_table(head, rows)}"
    )


def _sizes(comparison: Comparison, starts: Mapping[str, Start]) -> str:
    rung = comparison.rung
    times = rung.updates / next(iter(starts.values())).updates
    steps = f"{rung.updates:,} updates of up to {rung.tokens:,} tokens, which read the training data {times:.3g} times"
    return f"{comparison.depth} layers, {rung.dim} wide, {steps}"


def plan_text(
    comparison: Comparison,
    plan: Plan,
    results: Sequence[Result],
    starts: Mapping[str, Start],
    estimates: Mapping[str, float],
    jobs: int,
) -> str:
    """Return the plan: what is compared, how it is decided, what is left of it, and what that costs on this machine."""
    runs = {entry.name: runs_left(entry, plan, results) for entry in plan.entries}
    seconds = sum(number * estimates[name] for name, number in runs.items()) / jobs
    more = "more where rates are close; " if plan.adds_seeds else ""
    each = dict.fromkeys(f"{end(estimates.values()):.0f}" for end in (min, max))
    takes = f"{math.ceil(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    left = (
        f"About {sum(runs.values())} {'more ' if results else ''}runs of {' to '.join(each)} seconds, {jobs} at a time:"
        f" {takes}; {more}"
        if any(runs.values())
        else "Nothing is left to train; "
    )
    return "\n".join(
        [
            f"{comparison.task.name}: {comparison.task.about}. {_sizes(comparison, starts)}.",
            "",
            start_text(starts),
            "",
            *rule(comparison, plan),
            "",
            f"{left}everything is in {comparison.folder}.",
        ]
    )


def markdown(findings: Findings, comparison: Comparison, pictures: Mapping[str, str]) -> str:
    """Return ``report.md``; losses and verdicts come first.

    Args:
        pictures: title of each by the name of its file, without the ending.
    """
    plan, results, starts = findings.plan, findings.results, findings.starts
    losses = findings.losses(plan.baseline)
    noise = statistics.stdev(losses.values()) if len(losses) > 1 else None
    smallest = smallest_difference(plan.seeds, len(plan.entries) - 1)
    found = f"; {plan.seeds} seeds find a difference of {smallest * noise:.3f}" if smallest and noise else ""
    left = next_cells(plan, results)
    bad = [o for o in results if o.ended != "learned"]
    ends = (f"{o.entry}, lr {o.lr:g}, seed {o.seed}: {o.ended}; {o.reason}." for o in bad)
    compared = [(f"equal {at}", v) for at in ("updates", "seconds") for v in getattr(findings, f"at_{at}")]
    parts = [
        f"# Wirings compared on {comparison.task.name}",
        _list(
            f"{comparison.task.about}; {_sizes(comparison, starts)}. Losses in bits per target token on validation"
            f" data; the unigram loss is {comparison.unigram_loss:.2f}.",
            *map(findings.sentence, findings.at_updates),
            f"Noise floor: {plan.baseline.name} varies by {noise:.4f} bits (standard deviation over {len(losses)}"
            f" seeds){found}."
            if noise is not None
            else f"Noise floor: unknown, {plan.baseline.name} has fewer than two seeds.",
            *(["Runs are left, see below: they may choose other rates and change what is said."] if left else []),
        ),
        "## Losses",
        markdown_table(LOSS_HEAD, [_loss_row(findings, entry) for entry in plan.entries]),
        f"## Against {plan.baseline.name}",
        "Differences of validation losses; less than 0 is better.",
        markdown_table(
            ("wiring", "at", "seeds", "difference", "95% interval", "p (Holm)", "verdict"),
            [
                (v.entry, at, v.pairs, _signed(v.difference), _signed(*v.interval or ()), v.p, v.word)
                for at, v in compared
            ],
        ),
        RULE,
        _list(*rule(comparison, plan), "One task at one size says nothing of others, nor of deeper stacks."),
        *(f"## {title}\n\n![{title}]({name}.png)" for name, title in pictures.items()),
        "## Before training",
        start_text(starts),
        "## Other ends",
        _list(*ends) or "All runs learned.",
        "## Not run",
        ", ".join([*(cell.name for cell in left[:20]), *(["..."] if len(left) > 20 else [])]) or "Nothing is left.",
        "## Made by",
        _list(*_made_by(comparison, results)),
        *(f"## {path.name}\n\n{_fenced(path.read_text(encoding='utf-8'))}" for path in own_files(comparison.user_dir)),
    ]
    return "\n\n".join(parts) + "\n"


def _list(*lines: str) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _fenced(text: str) -> str:
    """Return a user's file as a block of code, which no backticks in it end."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{text.rstrip()}\n{fence}"


LOSS_HEAD = (
    *("wiring", "rate", "seeds", "valid loss", "train loss", "score", "parameters"),
    "did not learn, diverged or failed at",
)


def _loss_row(findings: Findings, entry: Entry) -> tuple[Cell, ...]:
    chosen, grid = findings.chosen[entry], rate_losses(entry, findings.results)
    own = [o for o in findings.results if o.entry == entry.name]
    bad = sorted({o.lr for o in own if o.ended != "learned"})

    def of(name: str, digits: int) -> str | None:
        return mean_and_spread([v for o in chosen if (v := getattr(o, name)) is not None], digits)

    rate = f"{chosen[0].lr:g}{EDGE if len(grid) > 1 and is_edge(chosen[0].lr, grid) else ''}" if chosen else None
    parameters = next((o.parameters for o in own if o.parameters), None)
    return (
        *(entry.name, rate, len(chosen), of("valid_loss", 2 if len(chosen) < 2 else 3), of("train_loss", 2)),
        *(of("score", 1), parameters, ", ".join(f"{lr:g}" for lr in bad) or None),
    )


def _signed(*values: float | None) -> str | None:
    return " to ".join(f"{value:+.4f}" for value in values if value is not None) or None


def _made_by(comparison: Comparison, results: Sequence[Result]) -> list[str]:
    def all_of(name: str) -> str:
        return ", ".join(sorted({getattr(o, name) for o in results if getattr(o, name)}))

    return [
        f"{len(results)} runs, {sum(o.hours for o in results):.2f} hours of them together; runs.csv has a line for"
        " each, runs/ the logs.",
        f"Data {comparison.data_digest}; settings {comparison.shared}; commit {all_of('commit')}.",
        f"torch {all_of('torch')} on {all_of('device')}, {comparison.trained_in}.",
        *([f"Settings beside the task's: {' '.join(comparison.overrides)}."] if comparison.overrides else []),
        *([f"Scores: {all_of('signature')}."] if all_of("signature") else []),
    ]


def write(comparison: Comparison, plan: Plan, results: Sequence[Result], starts: Mapping[str, Start]) -> str:
    """Write the report, and return its first part and where it is."""
    findings = Findings(plan, results, starts)
    figures = pictures.draw(findings, comparison.unigram_loss)
    text = markdown(findings, comparison, {name: title for name, (title, _) in figures.items()})
    page = _html(text, {name: pictures.svg(figure) for name, (_, figure) in figures.items()})
    for name, (_, figure) in figures.items():
        with atomic_write(comparison.folder / f"{name}.png") as new:
            figure.savefig(new, format="png")
    for name, content in (("report.md", text), ("report.html", page)):
        with atomic_write(comparison.folder / name) as new:
            new.write_text(content, encoding="utf-8")
    shown = text[: text.index(RULE)]
    return f"\n{shown}Written to {comparison.folder}: report.html, report.md, runs.csv."


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#111}"
    "table{border-collapse:collapse;font-size:14px;display:block;overflow-x:auto}"
    "td,th{padding:.2rem .7rem;border-bottom:1px solid #bbb;text-align:right;white-space:nowrap}"
    "td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"
)


def _html(text: str, drawn: Mapping[str, str]) -> str:
    """Return one page that needs nothing but itself: pictures are SVG in it."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r'<p><img src="(\w+)\.png".*?></p>', lambda picture: drawn[picture[1]], body)
    title = html.escape(text[2 : text.index("\n")])
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
