"""Write English-German sentence pairs: ``python -m fairseq_residuals.lab.data.synthetic OUT``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_residuals.lab.data.synthetic.cldr import make_corpus, write_corpus
from fairseq_residuals.wirings.core.errors import UserError

PROGRAM = "fairseq_residuals.lab.data.synthetic"


def main(argv: Sequence[str] | None = None) -> int:
    """Write train, valid and test in both languages, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Writes OUT/{train,valid,test}.{en,de}, a sentence a line: dates, prices, countries and "
        "lists of them, as the Unicode CLDR has them in both languages. The same numbers make the same sentences.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder")
    parser.add_argument("--train", type=int, default=20_000, metavar="N", help="pairs to train on (%(default)s)")
    parser.add_argument(
        "--held-out", type=int, default=500, metavar="N", help="pairs of valid, and of test (%(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        if min(args.train, args.held_out) < 1:
            raise UserError("--train and --held-out must be at least 1")
        args.out.mkdir(parents=True, exist_ok=True)
        write_corpus(args.out, make_corpus({"train": args.train, "valid": args.held_out, "test": args.held_out}))
    except OSError as error:
        print(f"{PROGRAM}: error: {args.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except UserError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
