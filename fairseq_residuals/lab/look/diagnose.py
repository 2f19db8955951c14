"""``fairseq-residuals diagnose LOG``: whether a run learned, and if not, what happened and what to try."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_residuals.lab.look.output import MISTAKE_STATUS
from fairseq_residuals.lab.look.training_log import read_log
from fairseq_residuals.lab.look.verdicts import Unigram, diagnose

HELP = "say whether a run learned, diverged, overfits or stopped, by its log; and what to try"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="what fairseq-train printed, best with --log-residual-stats N"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="binarized corpus of the run, whose training targets are counted"
    )
    parser.set_defaults(mistake_status=MISTAKE_STATUS)


def run(args: argparse.Namespace) -> int:
    """Return 0, or raise a UserError: the file cannot be read, or is no log."""
    log = read_log(args.log)
    print(diagnose(log, Unigram.counted(args.data, log.target) if args.data else None).text())
    return 0
