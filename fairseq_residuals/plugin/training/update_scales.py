"""Settings of the optimizer that are not the same for all parameters, as wirings ask for them.

fairseq's optimizers have one group of parameters, with one rate, weight decay and eps. Where the wiring of a model says
otherwise (:meth:`.Variant.update_scales`), the group is parted while a training step runs, and whole again after it:
checkpoints and schedules are those of one group, and a run may go on with other options of the wiring.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

from fairseq.optim.bmuf import FairseqBMUF
from torch import nn

from fairseq_residuals.plugin.models.extensions import Extension, register_extension
from fairseq_residuals.plugin.training.trainer_hooks import hooks_of
from fairseq_residuals.wirings.core.depth_mup import UpdateScale
from fairseq_residuals.wirings.core.errors import UserError
from fairseq_residuals.wirings.parameter_groups import SAME, Scales, scales_of


def split(group: dict[str, Any], by_scale: dict[UpdateScale, list[nn.Parameter]]) -> list[dict[str, Any]]:
    """Return a group of an optimizer in parts, first the one whose settings are its own.

    Args:
        group: with lr, weight_decay and eps.
        by_scale: its parameters.
    """
    return [
        group
        | {
            "params": by_scale[scale],
            "lr": group["lr"] * scale.rate,
            "weight_decay": group["weight_decay"] * scale.decay,
            "eps": group["eps"] * scale.eps,
        }
        for scale in sorted(by_scale, key=lambda scale: scale != SAME)
    ]


def by_scale(scales: Scales, trainer: Any) -> dict[UpdateScale, list[nn.Parameter]]:
    """Sort the parameters that a trainer's optimizer has, which may be copies in single precision.

    Raises:
        UserError: they are in one vector, or the optimizer has other settings than Adam.
    """
    groups = trainer.optimizer.param_groups
    if not isinstance(groups, list):
        raise UserError("the wiring has settings of Adam for single parameters: take --optimizer adam, not composite")
    if not groups[0].get("weight_decay"):
        scales = {parameter: scale._replace(decay=1.0) for parameter, scale in scales.items()}
    if set(scales.values()) <= {SAME}:
        return {SAME: groups[0]["params"]}
    own = [p for p in chain(trainer.model.parameters(), trainer.criterion.parameters()) if p.requires_grad]
    held = [p for group in groups for p in group["params"]]
    if len(held) != len(own):
        raise UserError(
            "the wiring has settings of the optimizer for single parameters, and --fp16 keeps all in one vector: add"
            " --fp16-no-flatten-grads"
        )
    # adafactor's eps is a pair
    if not all(isinstance(groups[0].get(name), int | float) for name in ("lr", "weight_decay", "eps")):
        raise UserError(
            "the wiring has settings of Adam for single parameters: take --optimizer adam, fused_adam or radam"
        )
    if isinstance(trainer.optimizer, FairseqBMUF) and not trainer.optimizer.average_sync:
        raise UserError("--use-bmuf resets an optimizer of one group, and the wiring has several: add --average-sync")
    sorted_: dict[UpdateScale, list[nn.Parameter]] = {SAME: []}
    for parameter, copy in zip(own, held, strict=True):
        sorted_.setdefault(scales.get(parameter, SAME), []).append(copy)
    return sorted_


@contextmanager
def parted(scales: Scales, trainer: Any) -> Iterator[None]:
    """Part the one group of a trainer's optimizer, by the scales of the parameters."""
    groups = trainer.optimizer.param_groups
    (whole,) = groups
    parts = by_scale(scales, trainer)
    if len(parts) > 1:
        groups[:] = split(whole, parts)
    try:
        yield
    finally:
        # a schedule may have set the rate for the next step
        whole["lr"] = groups[0]["lr"]
        groups[:] = [whole]


@register_extension("update_scales")
class UpdateScales(Extension):
    """Settings that wirings ask of the optimizer; there are no flags."""

    def attach(self, model: nn.Module, args: Namespace) -> None:
        """Ask for calls around each training step, if the wiring has settings of its own."""
        if scales := scales_of(model):
            hooks = hooks_of(model)
            hooks.after_load_checkpoint.append(partial(by_scale, scales))
            hooks.around_train_step.append(partial(parted, scales))
