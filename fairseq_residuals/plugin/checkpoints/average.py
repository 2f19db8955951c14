"""The average of checkpoints, as fairseq's average_checkpoints script makes it (its wheel lacks it).

``fairseq-residuals average`` writes it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fairseq_residuals.plugin.checkpoints.checkpoint_file import check_output, read_checkpoint, save
from fairseq_residuals.plugin.checkpoints.fairseq_config import Settings, computed_otherwise, flat_settings, wiring_of
from fairseq_residuals.wirings.core.errors import UserError

Unit = Literal["epoch", "update"]

FILES: dict[Unit, re.Pattern[str]] = {
    "epoch": re.compile(r"checkpoint(\d+)\.pt"),
    "update": re.compile(r"checkpoint_\d+_(\d+)\.pt"),
}
"""The names that fairseq-train gives checkpoints; the group is the epoch or the update."""


def last_checkpoints(folder: Path, number: int, unit: Unit, upper_bound: int | None = None) -> list[Path]:
    """Return the last ``number`` checkpoints that fairseq-train wrote after epochs, or at updates; latest first.

    Args:
        upper_bound: leave out checkpoints of a later epoch or update.

    Raises:
        UserError: ``folder`` is no folder, or holds too few.
    """
    if number < 1:
        raise UserError(f"the number of {unit} checkpoints must be at least 1, not {number}")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; --num-{unit}-checkpoints needs the one folder of a training run")
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := FILES[unit].fullmatch(path.name))]
    if upper_bound is not None:
        found = [(at, path) for at, path in found if at <= upper_bound]
    if len(found) < number:
        bound = "" if upper_bound is None else f" up to {unit} {upper_bound}"
        raise UserError(f"{folder} holds {len(found)} {unit} checkpoints{bound}, {number} are needed")
    return [path for _, path in sorted(found, reverse=True)[:number]]


def average(inputs: Sequence[Path]) -> dict[str, Any]:
    """Return a checkpoint like the first of ``inputs``, its parameters the mean of all.

    Half precision is summed, and given back, in single precision. Whole numbers and truth values are summed, and given
    back, as int64, rounded down.
    Never more than one checkpoint is in memory beside the first one and the sum.

    Raises:
        UserError: a file is missing, damaged or no fairseq checkpoint, is given twice, or has parameters that are not
            finite or not the first's, or that compute something else.
    """
    for i, path in enumerate(inputs):
        if path.exists() and any(path.samefile(other) for other in inputs[:i]):
            raise UserError(f"{path} is given twice, and would count double; name each checkpoint once")
    result = _load(inputs[0])
    settings = flat_settings(result)
    # tied parameters are one tensor, which must not be added to twice
    total = {name: _summand(value).clone() for name, value in result["model"].items()}
    result["model"] = total
    for path in inputs[1:]:
        _add(total, path, inputs[0], settings)
    for value in total.values():
        value.div_(len(inputs), rounding_mode="floor" if value.dtype == torch.int64 else None)
    return result


def _load(path: Path) -> dict[str, Any]:
    checkpoint = read_checkpoint(path)
    for name, value in checkpoint["model"].items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(
                f"{path}: {name} is not finite, as after a training that diverged; leave this checkpoint out"
            )
    return checkpoint


def _summand(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32 if value.is_floating_point() else torch.int64))


def _add(total: dict[str, Tensor], path: Path, first: Path, settings: Settings) -> None:
    checkpoint = _load(path)
    wiring, others = wiring_of(settings), flat_settings(checkpoint)
    parameters = checkpoint["model"]
    different = sorted(total.keys() ^ parameters.keys())
    if different:
        has, lacks = (first, path) if different[0] in total else (path, first)
        raise UserError(
            f"{first} and {path} cannot be averaged: {has} has {different[0]}, {lacks} does not"
            + (f" ({len(different)} parameters differ so)" if len(different) > 1 else "")
        )
    if (other := wiring_of(others)) != wiring:
        raise UserError(
            f"{first} and {path} cannot be averaged: the one is wired by {wiring or 'fairseq'}, the other by"
            f" {other or 'fairseq'}"
        )
    if differing := computed_otherwise(settings, others):
        key, one, two = differing
        raise UserError(f"{first} and {path} cannot be averaged: {key} is {one} in the one, {two} in the other")
    for name, value in parameters.items():
        value, mean = _summand(value), total[name]
        kinds = [(tensor.is_floating_point(), tensor.is_complex()) for tensor in (value, mean)]
        if value.shape != mean.shape or kinds[0] != kinds[1]:
            raise UserError(
                f"{first} and {path} cannot be averaged: {name} is {mean.dtype} {tuple(mean.shape)}"
                f" in the one, {value.dtype} {tuple(value.shape)} in the other"
            )
        mean += value


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
    check_output(output, inputs, overwrite=args.overwrite)
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
