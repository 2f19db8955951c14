"""``fairseq-residuals average``: one checkpoint from the parameters of several."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_residuals.lab.commands.output_check import check_output
from fairseq_residuals.plugin.checkpoints.average import Unit, average, last_checkpoints
from fairseq_residuals.plugin.checkpoints.checkpoint_file import save
from fairseq_residuals.wirings.core.errors import UserError

HELP = "average the parameters of checkpoints: of named files, or of the last ones of a training run"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inputs",
        required=True,
        nargs="+",
        type=Path,
        metavar="PATH",
        help="checkpoint files; or the folder of a training run, with one of the --num flags",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="where to write the average")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there already")
    last = parser.add_mutually_exclusive_group()
    last.add_argument(
        "--num-epoch-checkpoints",
        type=int,
        metavar="N",
        help="take the last N checkpoints written after an epoch",
    )
    last.add_argument(
        "--num-update-checkpoints",
        type=int,
        metavar="N",
        help="take the last N checkpoints written at an update",
    )
    parser.add_argument(
        "--checkpoint-upper-bound", type=int, metavar="N", help="take none later than this epoch or update"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: the inputs cannot be averaged or the output cannot be written; nothing is written then.
    """
    inputs = _choose(args)
    output: Path = args.output
    check_output(output, inputs)
    if output.exists() and not args.overwrite:
        raise UserError(f"{output} is there already; --overwrite replaces it")
    print(f"averaging {len(inputs)} checkpoints:", *inputs, sep="\n", flush=True)
    save(average(inputs), output)
    print(f"wrote {output}")
    return 0


def _choose(args: argparse.Namespace) -> list[Path]:
    numbers: dict[Unit, int | None] = {
        "epoch": args.num_epoch_checkpoints,
        "update": args.num_update_checkpoints,
    }
    for unit, number in numbers.items():
        if number is not None:
            if len(args.inputs) != 1:
                raise UserError(
                    f"--num-{unit}-checkpoints needs --inputs to be one folder, not {len(args.inputs)} paths"
                )
            return last_checkpoints(args.inputs[0], number, unit, args.checkpoint_upper_bound)
    if args.checkpoint_upper_bound is not None:
        raise UserError("--checkpoint-upper-bound needs --num-epoch-checkpoints or --num-update-checkpoints")
    folder = next((path for path in args.inputs if path.is_dir()), None)
    if folder is not None:
        raise UserError(f"{folder} is a folder: add --num-epoch-checkpoints N or --num-update-checkpoints N")
    return list(args.inputs)
