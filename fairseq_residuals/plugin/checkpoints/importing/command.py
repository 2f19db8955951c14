"""``fairseq-residuals import --from REPOSITORY FILE OUT``: checkpoints of the authors' repositories."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fairseq_residuals.plugin.checkpoints.checkpoint_file import check_output, save
from fairseq_residuals.plugin.checkpoints.importing.from_hf import import_hf
from fairseq_residuals.plugin.checkpoints.importing.importer import import_checkpoint
from fairseq_residuals.plugin.checkpoints.importing.parameter_names import AUTHORS

HF = "hf"
HELP = "turn a checkpoint of the authors' own code, or of fairseq, into one of this plugin's"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="repository",
        required=True,
        choices=(*AUTHORS, HF),
        help="whose: "
        + ", ".join(f"{name} is {authors.repository}" for name, authors in AUTHORS.items())
        + f"; {HF}: FILE is a folder of transformers",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="compare the model with this folder's dict.*.txt")
    parser.add_argument("file", type=Path, metavar="FILE", help="the authors' checkpoint, or a folder of transformers")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="what to write, for fairseq-generate and fairseq-train --restore-file"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: the checkpoint cannot be imported or ``OUT`` not be written; nothing is written then.
    """
    check_output(args.out, [args.file])
    # what building a model prints says nothing here
    logging.disable(logging.INFO)
    try:
        if args.repository == HF:
            imported = import_hf(args.file, args.data)
        else:
            imported = import_checkpoint(args.file, args.repository, args.data)
    finally:
        logging.disable(logging.NOTSET)
    save(imported.checkpoint, args.out)
    print("\n".join([*imported.report, f"wrote {args.out}"]))
    return 0
