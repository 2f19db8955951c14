"""``fairseq-residuals change``: how much the layers' inputs change from one layer to the next."""

from __future__ import annotations

import argparse
import itertools

from torch import Tensor

from fairseq_residuals.lab.look.output import ByLayer, add_output_flags, check_folder, show_by_layer
from fairseq_residuals.lab.look.probes import ModelAndLoss, run_forward, unpadded
from fairseq_residuals.lab.look.subjects import add_flags, subjects


def change(subject: ModelAndLoss) -> ByLayer:
    """Return the mean absolute difference between what the first sub-layers of successive layers are fed.

    The mean is over all channels of all positions that are not padding. There is one number less than there are layers.
    """
    fed: dict[str, dict[int, Tensor]] = {}
    for event in run_forward(subject):
        if event.point == "fed":
            # the first of a layer, and of one that is evaluated several times its first evaluation
            fed.setdefault(event.stack, {}).setdefault(event.layer, unpadded(event))
    return {
        stack: [(above - below).abs().mean().item() for below, above in itertools.pairwise(x.values())]
        for stack, x in fed.items()
    }


HELP = "plot the mean absolute change between what successive layers are fed"


def configure(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    add_output_flags(parser, "change")


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: nothing can be measured or written."""
    check_folder(args)
    measured = [(s.label, s.wiring, change(s)) for s in subjects(args)]
    show_by_layer(args, measured, "mean |change of input|", "change")
    return 0
