"""The best learning rate over depth, with and without ``depth_mup``, on the small translation task.

``python -m fairseq_residuals.lab.recipes.synthetic_tasks.rates_over_depth``
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Any

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import write
from fairseq_residuals.lab.recipes.runner import Runner, cores
from fairseq_residuals.lab.recipes.sweep import TRAINED, SweepResult, SweepRun, carry_out
from fairseq_residuals.lab.recipes.sweep_table import keeper, read_results
from fairseq_residuals.lab.recipes.synthetic_tasks import find_task
from fairseq_residuals.lab.recipes.synthetic_tasks.command_line import add_flags, chosen_sizes, exit_status
from fairseq_residuals.lab.recipes.synthetic_tasks.task import EXPERIMENT
from fairseq_residuals.lab.recipes.workspace import Workspace
from fairseq_residuals.lab.utils.tables import Cell, markdown_table, text_table
from fairseq_residuals.plugin.folders import locked
from fairseq_residuals.wirings.core.errors import UserError

ROWS = ("pre_ln", "normformer", "peri_ln", "post_sublayer_norm", "x0_lambdas", "unet_skip")
DEPTHS = (6, 18, 50)
LEARNING_RATES = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
SEED = 1
NAME = "rates_over_depth"
HEAD = ("variant", "depth_mup", "{} layers", "largest / smallest")
Results = dict[int, list[SweepResult]]
"""By depth."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="small.rates_over_depth",
        description="Trains wirings on the small English-German task of scripts/small/translation.sh at several "
        "depths, each at several learning rates, with and without the option depth_mup, whose base is the first "
        "depth. Then draws the validation loss over the rate, and tells the best rate of each depth. A finished run "
        "is never repeated.",
    )
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="ROW", help=f"variants ({' '.join(ROWS)})")
    parser.add_argument("--layers", nargs="+", type=int, default=DEPTHS, metavar="N", help=f"of each stack {DEPTHS}")
    parser.add_argument("--lrs", nargs="+", type=float, default=LEARNING_RATES, metavar="X", help=f"{LEARNING_RATES}")
    parser.add_argument("--show", action="store_true", help="draw what is finished, and train nothing")
    parser.add_argument("--svg", action="store_true", help="write the picture as SVG too")
    add_flags(parser)
    parser.set_defaults(name=NAME)
    return parser


def scaled(row: str, base: int) -> str:
    """Return a row with the option on."""
    return f"{row}{',' if '/' in row else '/'}depth_mup=true,base_depth={base}"


def best_rate(results: Sequence[SweepResult]) -> float | None:
    """Return where a parabola through the lowest validation loss and its neighbours has its minimum.

    The parabola is over the logarithm of the rate. None where the lowest loss is at the end of the rates that trained.
    """
    trained = sorted((o.lr, o.valid_loss) for o in results if o.ended == TRAINED and o.valid_loss is not None)
    lowest = min(range(len(trained)), key=lambda i: trained[i][1], default=0)
    if not 0 < lowest < len(trained) - 1:
        return None
    (x0, y0), (x1, y1), (x2, y2) = ((math.log(lr), loss) for lr, loss in trained[lowest - 1 : lowest + 2])
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    return math.exp((x0 + x1) / 2 - left * (x2 - x0) / (2 * (right - left))) if right > left else math.exp(x1)


def curves(results: Results, row: str, with_option: bool) -> Results:
    """Return the runs of a row at each depth; at the first one the option changes nothing."""
    base = min(results)
    return {
        depth: [o for o in found if o.row == (scaled(row, base) if with_option and depth > base else row)]
        for depth, found in results.items()
    }


def table_rows(results: Results, rows: Sequence[str]) -> list[list[Cell]]:
    """Return the best rates of each row over depth, and how far apart they are."""
    lines: list[list[Cell]] = []
    for row in rows:
        for with_option in (False, True):
            best = [best_rate(found) for found in curves(results, row, with_option).values()]
            known = [rate for rate in best if rate is not None]
            apart = f"{max(known) / min(known):.2f}" if len(known) == len(best) else None
            rates = [None if rate is None else f"{rate:.2g}" for rate in best]
            lines.append([row, "on" if with_option else "off", *rates, apart])
    return lines


def draw(results: Results, rows: Sequence[str]) -> Any:
    """Draw the validation loss over the rate: a column per row, without and with the option, a line per depth."""
    figure, axes = plots.new_figure(
        2, len(rows), width=plots.PAGE, height=3.4, sharex=True, sharey="col" if len(rows) > 1 else True
    )
    for column, row in enumerate(rows):
        for line, with_option in enumerate((False, True)):
            panel = axes[line][column]
            found = curves(results, row, with_option)
            for (depth, runs), style in zip(found.items(), plots.sequence_styles(len(found)), strict=True):
                points = sorted((o.lr, o.valid_loss) for o in runs if o.ended == TRAINED and o.valid_loss is not None)
                panel.plot(*zip(*points, strict=True), label=f"{depth} layers", **style) if points else None
                if rate := best_rate(runs):
                    panel.axvline(rate, linewidth=0.6, alpha=0.6, color=style["color"], linestyle=style["linestyle"])
            panel.set_xscale("log", base=2)
            title = row if line == 0 else "with depth_mup"
            plots.finish(panel, "learning rate" if line else "", "valid loss (bits)" if column == 0 else "", title)
    plots.legend(figure, axes[0][0])
    return figure


def run(args: argparse.Namespace) -> None:
    task = find_task("translation")
    sizes = chosen_sizes(args, task)
    if min(args.lrs) <= 0 or min(args.layers) < 1:
        raise UserError("--lrs must be more than 0, and --layers at least 1")
    depths = sorted(set(args.layers))
    results: Results = {}
    for depth in depths:
        own = (f"model.encoder_layers={depth}", f"model.decoder_layers={depth}")
        workspace = Workspace.under(
            args.out, task, sizes, (*args.override, *own), name=f"{NAME}-{depth}l", any_code=True
        )
        rows = [*args.rows, *(scaled(row, depths[0]) for row in args.rows if depth > depths[0])]
        asked = [SweepRun(row, lr, SEED) for row in rows for lr in args.lrs]
        results[depth] = _results(workspace, asked, args)
    if not any(results.values()):
        raise UserError(f"--show: nothing is finished in {args.out}")
    head = [column for name in HEAD for column in ([name.format(d) for d in depths] if "{}" in name else [name])]
    lines = table_rows(results, args.rows)
    print(f"\n{text_table(head, lines)}\n\n{markdown_table(head, lines)}\n")
    csv_head = ("layers", "row", "lr", "ended", "valid_loss", "train_loss", "updates", "commit", "torch", "device")
    csv_rows = [
        (depth, *(getattr(o, name) for name in csv_head[1:])) for depth, found in results.items() for o in found
    ]
    write(args, draw(results, args.rows), csv_head, csv_rows)


def _results(workspace: Workspace, asked: Sequence[SweepRun], args: argparse.Namespace) -> list[SweepResult]:
    """Return the results of one depth, after what is missing has been trained."""
    if args.show:  # another process may be at work there
        return _chosen(read_results(workspace.results), asked)
    with locked(workspace.folder):
        results = read_results(workspace.results)
        done = {o.run for o in results}
        if missing := [run for run in asked if run not in done]:
            workspace.prepare(workers=min(args.jobs, cores()))
            keep = keeper(workspace.results, results)
            carry_out(workspace, missing, Runner.on_cpu(args.jobs), keep, with_bleu=False)
    return _chosen(results, asked)


def _chosen(results: Sequence[SweepResult], asked: Sequence[SweepRun]) -> list[SweepResult]:
    return [o for o in results if o.run in set(asked)]


def main(argv: Sequence[str] | None = None) -> int:
    """Train what has not been trained, draw, and return the exit status."""
    args = build_parser().parse_args(argv)
    return exit_status(EXPERIMENT, lambda: run(args))


if __name__ == "__main__":
    sys.exit(main())
