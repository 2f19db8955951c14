"""``fairseq-residuals export --to FORMAT FILE OUT``: trained models for other programs."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from fairseq_residuals.plugin.checkpoints.checkpoint_file import check_new_folder, check_output, save
from fairseq_residuals.plugin.checkpoints.exporting.export_folders import FORMATS, Options, export_folder
from fairseq_residuals.plugin.checkpoints.exporting.exporter import TOLERANCE, export_checkpoint
from fairseq_residuals.wirings.core.errors import UserError

HELP = "turn a checkpoint of this plugin into a model for fairseq itself, transformers or ONNX"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        required=True,
        choices=("fairseq", *FORMATS),
        help="what is to read it: fairseq without this plugin, where its own models compute exactly the same;"
        " transformers; onnxruntime and others",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="with --to hf, the folder of the model's dictionaries: adds a tokenizer",
    )
    parser.add_argument("--codes", type=Path, metavar="FILE", help="with --data, the BPE codes of subword-nmt")
    parser.add_argument("--sentencepiece", type=Path, metavar="FILE", help="with --data, the model of SentencePiece")
    parser.add_argument(
        "--own-class",
        action="store_true",
        help="with --to hf, use this project's modelling file also where a class of transformers has the wiring",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a checkpoint of this plugin's models")
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="what to write: a file with --to fairseq, otherwise a new folder"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: the format cannot hold the model, or ``OUT`` cannot be written; nothing is written then.
    """
    options = Options(args.data, args.codes, args.sentencepiece, args.own_class)
    if args.to != "hf" and options != Options():
        raise UserError("--data, --codes, --sentencepiece and --own-class are for --to hf; leave them out")
    if args.to == "fairseq":
        check_output(args.out, [args.file])
    else:
        check_new_folder(args.out)
    # what building a model prints says nothing here
    logging.disable(logging.INFO)
    try:
        report = (
            _to_fairseq(args.file, args.out)
            if args.to == "fairseq"
            else export_folder(args.file, args.to, args.out, options)
        )
    finally:
        logging.disable(logging.NOTSET)
    print("\n".join([*report, f"wrote {args.out}"]))
    return 0


def _to_fairseq(file: Path, out: Path) -> list[str]:
    exported = export_checkpoint(file)
    save(exported.checkpoint, out)
    return [
        f"architecture of fairseq's own: {exported.architecture}",
        *(
            f"{side}: the factor on its first residual is in its embedding, and in a table of positions"
            for side in exported.tables
        ),
        f"largest difference of logits on random input: {exported.deviation:.1e} of the largest logit"
        f" (tolerance {TOLERANCE:g})",
        "the optimizer's state is left out",
    ]
