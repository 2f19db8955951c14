"""``fairseq-residuals change``: how much the layers' inputs change from one layer to the next."""

from __future__ import annotations

import argparse

from fairseq_residuals.lab.look import measures
from fairseq_residuals.lab.look.by_layer import show_by_layer
from fairseq_residuals.lab.look.models import add_flags, subjects
from fairseq_residuals.lab.look.output import add_output_flags, check_folder

HELP = "plot the mean absolute change between what successive layers are fed"


def configure(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    add_output_flags(parser, "change")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: nothing can be measured or written.
    """
    check_folder(args)
    measured = [(s.label, s.wiring, measures.change(s)) for s in subjects(args)]
    show_by_layer(args, measured, "mean |change of input|", "change")
    return 0
