"""``fairseq-residuals export --to fairseq FILE OUT``: checkpoints for fairseq without this plugin."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fairseq_residuals.checkpoints.average import save
from fairseq_residuals.checkpoints.exporting.exporter import TOLERANCE, export_checkpoint
from fairseq_residuals.cli.output import check_output

HELP = "turn a checkpoint of this plugin into one of fairseq's own models, where that computes exactly the same"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, choices=("fairseq",), help="what is to read it")
    parser.add_argument("file", type=Path, metavar="FILE", help="a checkpoint of this plugin's models")
    parser.add_argument("out", type=Path, metavar="OUT", help="what to write, for fairseq without --user-dir")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: fairseq's own models cannot compute the same, or ``OUT`` cannot be written; nothing is written then.
    """
    check_output(args.out, [args.file])
    # what building a model prints says nothing here
    logging.disable(logging.INFO)
    try:
        exported = export_checkpoint(args.file)
    finally:
        logging.disable(logging.NOTSET)
    save(exported.checkpoint, args.out)
    print(f"architecture of fairseq's own: {exported.architecture}")
    for side in exported.tables:
        print(f"{side}: the factor on its first residual is in its embedding, and in a table of positions")
    print(
        f"largest difference of logits on random input: {exported.deviation:.1e} of the largest logit"
        f" (tolerance {TOLERANCE:g})"
    )
    print("the optimizer's state is left out")
    print(f"wrote {args.out}")
    return 0
