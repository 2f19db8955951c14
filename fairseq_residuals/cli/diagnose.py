"""``fairseq-residuals diagnose LOG|CHECKPOINT``: why a run diverged or failed, and what to try."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_residuals.analysis import plots
from fairseq_residuals.analysis.failure import picture
from fairseq_residuals.analysis.failure.checkpoint import HEAD, CheckpointDiagnosis, diagnose_checkpoint
from fairseq_residuals.analysis.failure.diagnosis import diagnose
from fairseq_residuals.analysis.output import add_output_flags, check_folder, write
from fairseq_residuals.analysis.training_log import read_log
from fairseq_residuals.core.errors import UserError
from fairseq_residuals.utils.tables import few, text_table

HELP = (
    "say why a run diverged or failed, by its log or a checkpoint: overflows, NaN, the first layer, vanishing gradients"
)
TORCH_SAVE = (b"PK", b"\x80")
"""How files begin that torch.save wrote, now and before PyTorch 1.6."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_file",
        type=Path,
        metavar="LOG|CHECKPOINT",
        help="what fairseq-train printed (best with --log-residual-stats N), or a checkpoint that it wrote",
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="for a checkpoint's gradients (%(default)s)")
    add_output_flags(parser, "diagnosis")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, whatever was found.

    Raises:
        UserError: the file cannot be read, or is neither a log nor a checkpoint.
    """
    check_folder(args)
    try:
        with args.run_file.open("rb") as file:
            is_checkpoint = file.read(2).startswith(TORCH_SAVE)
    except OSError as error:
        raise UserError(f"{args.run_file} cannot be read: {error.strerror}") from error
    return _from_checkpoint(args) if is_checkpoint else _from_log(args)


def _from_log(args: argparse.Namespace) -> int:
    log = read_log(args.run_file)
    found = diagnose(log)
    figure = picture.draw(log, found)
    print(found.text())
    if found.norms:
        print(f"\n{text_table(*picture.layer_table(found))}")
    if figure is None:
        print("the log has no numbers to plot")
    else:
        write(args, figure, picture.HEAD, picture.rows(log, found))
    return 0


def _from_checkpoint(args: argparse.Namespace) -> int:
    found = diagnose_checkpoint(args.run_file, args.device)
    print(found.text())
    rows = [layer.row() for layer in found.layers]
    if not rows:
        print("it has no layers of an encoder or decoder to plot")
        return 0
    kept = {
        (stack, number)
        for stack in ("encoder", "decoder")
        for number in few([layer.layer for layer in found.layers if layer.stack == stack])
    }
    print(f"\n{text_table(HEAD, [row for row in rows if row[3] or row[4] or (row[0], row[1]) in kept])}")
    write(args, _draw_checkpoint(found), HEAD, rows)
    return 0


def _draw_checkpoint(found: CheckpointDiagnosis) -> Any:
    stacks = list(dict.fromkeys(layer.stack for layer in found.layers))
    figure, axes = plots.new_figure(1, len(stacks), height=2.3, sharey=True)
    lines = (
        ("gradient norm", plots.VERMILION, HEAD.index("gradient norm")),
        ("rms of weights", plots.BLUE, HEAD.index("rms")),
        ("rms of output", plots.GREEN, HEAD.index("output rms")),
    )
    for stack, panel in zip(stacks, axes[0], strict=True):
        rows = [layer.row() for layer in found.layers if layer.stack == stack]
        for name, colour, column in lines:
            points = [(row[1], row[column]) for row in rows if row[column] is not None]
            if points:
                panel.plot(
                    *zip(*points, strict=True), color=colour, label=name, marker=".", markersize=4, linewidth=1.2
                )
        for row in rows:
            if row[3] or row[4]:
                panel.axvline(row[1], color="0.5", linestyle=":", linewidth=1)
                panel.annotate(
                    "not finite",
                    (row[1], 0.97),
                    xycoords=("data", "axes fraction"),
                    fontsize=6,
                    rotation=90,
                    ha="right",
                    va="top",
                )
        panel.set_yscale("log")
        plots.finish(panel, f"{stack} layer", "", whole_x=True)
    plots.legend(figure, axes[0][0])
    return figure
