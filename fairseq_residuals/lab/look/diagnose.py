"""``fairseq-residuals diagnose LOG|CHECKPOINT``: whether a run learned, and if not, what happened and what to try."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_residuals.lab.look import plots
from fairseq_residuals.lab.look.output import add_output_flags, check_folder, write
from fairseq_residuals.lab.look.training_log import TRAIN, VALID, Log, read_log
from fairseq_residuals.lab.look.verdicts import DIVERGED, LOWER_RATE, Diagnosis, Unigram, diagnose, losses
from fairseq_residuals.lab.utils.tables import Cell, few, show
from fairseq_residuals.plugin.checkpoints.checkpoint_file import read_checkpoint
from fairseq_residuals.plugin.checkpoints.safetensors_file import SUFFIX
from fairseq_residuals.wirings.core.errors import UserError

HELP = "say whether a run learned, diverged, overfits or stopped, by its log or a checkpoint; and what to try"
TORCH_SAVE = (b"PK", b"\x80")
"""How files begin that torch.save wrote, now and before PyTorch 1.6."""
_UNFILLED = "._float_tensor"
"""Ends the name of a buffer of fairseq's sinusoidal positions that is memory as it was found, for its device alone."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "run_file",
        type=Path,
        metavar="LOG|CHECKPOINT",
        help="what fairseq-train printed (best with --log-residual-stats N), or a checkpoint that it wrote",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="binarized corpus of a log's run, whose training targets are counted"
    )
    add_output_flags(parser, "diagnosis")


def run(args: argparse.Namespace) -> int:
    """Exit status 0, whatever the verdict.

    Raises:
        UserError: the file cannot be read, or is neither a log nor a checkpoint.
    """
    check_folder(args)
    try:
        with args.run_file.open("rb") as file:
            is_checkpoint = file.read(2).startswith(TORCH_SAVE) or args.run_file.suffix == SUFFIX
    except OSError as error:
        raise UserError(f"{args.run_file} cannot be read: {error.strerror}") from error
    return _from_checkpoint(args) if is_checkpoint else _from_log(args)


def _from_log(args: argparse.Namespace) -> int:
    log = read_log(args.run_file)
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


def _from_checkpoint(args: argparse.Namespace) -> int:
    """Look at the parameters and at the optimizer's state."""
    state = read_checkpoint(args.run_file)
    found = Diagnosis()
    if args.run_file.suffix == SUFFIX:
        found.happened.append("it has parameters alone, and does not say after which update")
    else:
        _tell_progress(state, found)
    broken, optimizer = _broken(state["model"]), _broken(_moments(state))
    for name, (nan, inf, size) in list(broken.items())[:5]:
        found.happened.append(f"{name} has {nan:,} NaN and {inf:,} infinite numbers of {size:,}")
    if len(broken) > 5:
        found.happened.append(f"so have {len(broken) - 5} more of its {len(state['model'])} parameters")
    if optimizer:
        found.happened.append(f"{len(optimizer)} tensors of the optimizer's state have numbers that are not finite")
    if broken or optimizer:
        found.verdict = DIVERGED
        found.advise("start again from an earlier checkpoint: no later update can mend this one", LOWER_RATE)
    else:
        found.happened.append("all parameters are finite; whether the model learned, its log says")
        found.advise(f"`fairseq-residuals gradients --checkpoint {args.run_file}` plots the gradients of its layers")
    print(found.text())
    return 0


def _tell_progress(state: Mapping[str, Any], found: Diagnosis) -> None:
    history = state.get("optimizer_history") or [{}]
    sentence = f"it was written after update {history[-1].get('num_updates', '?')}"
    scale = (state.get("last_optimizer_state") or {}).get("loss_scale")
    if scale is not None:
        sentence += f", at a loss scale of {show(float(scale))}"
        if scale < 1:
            found.advise(
                f"a loss scale below 1 means that fp16 overflows all the time: train in --bf16, or {LOWER_RATE}"
            )
    best = (state.get("extra_state") or {}).get("best")
    found.happened.append(
        sentence + (f"; the best validation so far was {show(float(best))}" if best is not None else "")
    )


def _broken(tensors: Mapping[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Return, by name, how many entries are NaN and infinite, and how many there are."""
    return {
        name: (int(tensor.isnan().sum()), int(tensor.isinf().sum()), tensor.numel())
        for name, tensor in tensors.items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not name.endswith(_UNFILLED)
        if not tensor.isfinite().all()
    }


def _moments(state: Mapping[str, Any]) -> dict[str, Tensor]:
    per_parameter = (state.get("last_optimizer_state") or {}).get("state") or {}
    return {
        f"{number}.{name}": tensor
        for number, moments in per_parameter.items()
        if isinstance(moments, Mapping)
        for name, tensor in moments.items()
    }
