"""fairseq-preprocess, called as a function."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fairseq import options
from fairseq_cli import preprocess


def binarize(folder: Path, flags: Sequence[str], workers: int) -> None:
    """Run ``fairseq-preprocess``, a path in ``flags`` as --FLAG=PATH; its log, with times and paths, is not kept."""
    parser = options.get_preprocessing_parser()
    arguments = [*flags, f"--destdir={folder}", "--workers", str(workers)]
    before = set(preprocess.logger.handlers)
    try:
        preprocess.main(parser.parse_args(arguments))
    finally:
        for handler in set(preprocess.logger.handlers) - before:
            preprocess.logger.removeHandler(handler)
            if isinstance(handler, logging.FileHandler):
                handler.close()
    (folder / "preprocess.log").unlink()


def write_dictionary(words: Sequence[str], path: Path) -> None:
    """Write a dictionary of fairseq with these words in this order (fairseq puts its special symbols before them)."""
    path.write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")
