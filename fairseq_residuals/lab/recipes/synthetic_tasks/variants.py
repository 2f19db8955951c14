"""All variants on the small translation task, each at its best learning rate.

``python -m fairseq_residuals.lab.recipes.synthetic_tasks.variants``
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from fairseq_residuals.lab.recipes.runner import Runner, cores
from fairseq_residuals.lab.recipes.sweep import SweepResult, SweepRun, carry_out, first_variant
from fairseq_residuals.lab.recipes.sweep_table import EDGE, failures, keeper, read_results, still_to_do, table
from fairseq_residuals.lab.recipes.synthetic_tasks import find_task
from fairseq_residuals.lab.recipes.synthetic_tasks.command_line import add_flags, chosen_sizes, exit_status
from fairseq_residuals.lab.recipes.synthetic_tasks.task import EXPERIMENT
from fairseq_residuals.lab.recipes.workspace import Workspace
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.plugin.models.architectures import ARCHITECTURES
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.core.registry import VARIANTS, find_variant

TASK = "translation"
LEARNING_RATES = (0.0005, 0.001, 0.002)
SEEDS = (1, 2, 3)
START_SECONDS, SECONDS_PER_UPDATE = 12.0, 0.4
"""CPU seconds of training Pre-LN, 18 + 18 layers, as measured here; for the first estimate only."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="small.variants",
        description="Trains every variant on the small English-German task of scripts/small/translation.sh, 18 + 18 "
        "narrow layers, on the CPU: with the first seed at every learning rate, then with the other seeds at the one "
        "that gave the lowest validation loss. Results are written run by run; a finished run is never repeated "
        "(remove its line from results.csv to repeat it).",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        help="variants, as NAME or NAME/option=value,...; lists such as post_ln:0-5,pre_ln:6-17 (every variant)",
    )
    parser.add_argument("--lrs", nargs="+", type=float, default=LEARNING_RATES, metavar="X", help=f"{LEARNING_RATES}")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N", help=f"{SEEDS}")
    parser.add_argument("--show", action="store_true", help="print the table of what is finished, and train nothing")
    add_flags(parser)
    return parser


def chosen_rows(given: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """Return the rows that can be trained, and of the others why not.

    Raises:
        UserError: a row names no variant, or an option that is not valid.
    """
    rows, refused = [], {}
    for row in dict.fromkeys(given or sorted(VARIANTS)):
        first = first_variant(row)
        if f"transformer_{first}" in ARCHITECTURES:
            rows.append(row)
        else:
            refused[row] = str(find_variant(first).refusal(alone=False, topmost=True))
    return rows, refused


def estimate(rows: Sequence[str], args: argparse.Namespace, updates: int, results: Sequence[SweepResult]) -> str:
    """Return how many runs there are at most, and what they take."""
    done = {o.run for o in results}
    grid = sum(SweepRun(row, lr, args.seeds[0]) not in done for row in rows for lr in args.lrs)
    others = {(row, seed) for row in rows for seed in args.seeds[1:]} - {(o.row, o.seed) for o in results}
    timed = [o.cpu_seconds for o in results if o.cpu_seconds]
    each = sum(timed) / len(timed) if timed else START_SECONDS + SECONDS_PER_UPDATE * updates
    at_a_time = min(args.jobs, cores())
    left = grid + len(others)
    basis = (
        f"the mean of {len(timed)} finished runs"
        if timed
        else "as Pre-LN took where this was written, mHC 2.5 times as many"
    )
    return (
        f"{left} runs to do at most, {each:.0f} CPU seconds of training each ({basis}): about "
        f"{left * each / at_a_time / 3600:.1f} hours on {at_a_time} cores, and the time of generation."
    )


def report(workspace: Workspace, results: Sequence[SweepResult], refused: dict[str, str], seeds: Sequence[int]) -> str:
    """Return the table, as text and in Markdown, and what its numbers are and are not."""
    schedule = dict(SweepRun("pre_ln", LEARNING_RATES[0], 1).job(workspace).asked.lr_scheduler)
    named = ", ".join([schedule.pop("_name"), *(f"{key.replace('_', ' ')} {value}" for key, value in schedule.items())])
    unigram = ", ".join(sorted({f"{o.unigram_loss:.2f}" for o in results}))
    sizes = workspace.sizes
    made_by = ", ".join(sorted({f"{o.commit} with torch {o.torch} on {o.device}" for o in results}))
    caption = [
        f"Data: {workspace.task.data}; at most {sizes.examples:,} pairs for training, {sizes.held_out} each for "
        f"validation and test. {sizes.updates} updates.",
        "Losses: bits per target token on the validation set after the last update, and in training over the last "
        "twentieth of it; BLEU of the test set with the mean of the last checkpoints; CPU seconds and memory of "
        "training.",
        "Means ± standard deviations over the seeds that trained, at the learning rate with the lowest validation "
        f"loss with seed {seeds[0]}, which is one of them; {EDGE} marks the end of the grid, beyond which a better one "
        "may lie.",
        f"Diverged, with seed {seeds[0]}: fairseq gave up (no loss is told), or the validation loss ended above "
        f"{unigram}, that of a model that knows only how frequent tokens are in training; a slow start counts as well.",
        f"All have the same schedule ({named}), also those that were proposed to do without warm-up (T-Fixup, ReZero), "
        "and the same dropout, batches and gradient clipping; no variant was tuned beyond its learning rate, and "
        "options that a row does not name have their defaults.",
        "This compares how wirings of this depth train within a small budget; it says nothing of the papers' data, "
        "widths and lengths of training.",
        f"Made by {made_by}." + (f" Overrides: {' '.join(workspace.overrides)}." if workspace.overrides else ""),
        *(f"{row} is not among them: {reason}" for row, reason in refused.items()),
        *failures(results),
    ]
    both = (table(results, seeds[0], markdown) for markdown in (False, True))
    return "\n\n".join([*both, "\n".join(f"- {line}" for line in caption)])


def run(args: argparse.Namespace) -> None:
    began = time.monotonic()
    task = find_task(TASK)
    sizes = chosen_sizes(args, task)
    if min(args.lrs) <= 0:
        raise UserError(f"--lrs has to be more than 0, not {min(args.lrs):g}")
    args.lrs, args.seeds = (list(dict.fromkeys(given)) for given in (args.lrs, args.seeds))
    rows, refused = chosen_rows(args.rows)
    workspace = Workspace.under(args.out, task, sizes, args.override, name="variants", any_code=True)
    if args.show:
        if not workspace.results.exists():
            raise UserError(f"--show: nothing is finished in {workspace.folder}")
        print(report(workspace, read_results(workspace.results), refused, args.seeds))
        return
    with locked(workspace.folder):
        results = read_results(workspace.results)
        print(estimate(rows, args, sizes.updates, results), flush=True)
        workspace.prepare(workers=min(args.jobs, cores()))
        runner, keep = Runner.on_cpu(args.jobs), keeper(workspace.results, results)
        while runs := still_to_do(rows, args.lrs, args.seeds, results):
            carry_out(workspace, runs, runner, keep)
        text = report(workspace, results, refused, args.seeds)
        (workspace.folder / "report.md").write_text(f"{text}\n", encoding="utf-8")
    print(f"\n{text}\n\nWritten to {workspace.folder}: report.md, results.csv; commands and logs are there too.")
    print(f"This took {time.monotonic() - began:.0f} seconds.")


def main(argv: Sequence[str] | None = None) -> int:
    """Train what has not been trained, print the table, and return the exit status."""
    args = build_parser().parse_args(argv)
    return exit_status(EXPERIMENT, lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
