"""``fairseq-residuals prepare CORPUS OUT``: from a corpus's published files to data for fairseq."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fairseq_residuals.lab.data.corpora import CORPORA
from fairseq_residuals.lab.data.parallel_map import cores
from fairseq_residuals.plugin.documents import read_record
from fairseq_residuals.wirings.core.errors import UserError

HELP = "download, clean, tokenize and binarize a corpus; what is done is not done again"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", metavar="CORPUS", help=f"one of {', '.join(CORPORA)}")
    parser.add_argument("out", metavar="OUT", type=Path, nargs="?", help="the folder for data-bin, text and the rest")
    parser.add_argument("--variant", metavar="NAME", help="which way to prepare it; --sources lists them")
    parser.add_argument(
        "--mirror",
        metavar="DIR|URL",
        default=os.environ.get("MIRROR"),
        help="a folder or an address with the files by name; a folder is used in place of the network, and for "
        "files that cannot be downloaded (default: the environment's MIRROR; for debian what apt names)",
    )
    parser.add_argument("--downloads", metavar="DIR", type=Path, help="where downloads are kept (OUT/downloads)")
    parser.add_argument("--workers", metavar="N", type=int, default=cores(), help="processes (default: all cores)")
    parser.add_argument("--sources", action="store_true", help="say which files are needed, and from where, and stop")


def run(args: argparse.Namespace) -> int:
    """Exit status 0.

    Raises:
        UserError: anything that a user can put right.
    """
    # These need libraries that not every command does.
    from fairseq_residuals.lab.data.corpora import find_corpus
    from fairseq_residuals.lab.data.corpus import Job, downloads_of, prepare

    corpus = find_corpus(args.corpus)
    if args.sources:
        for name, variant in [corpus.variant(args.variant)] if args.variant else corpus.variants.items():
            print(f"{corpus.name} --variant {name}: {variant.summary}")
            for source in variant.sources:
                told = filter(None, [source.digest, source.terms])
                print(f"  {source.name}", *source.urls, *told, sep="\n    ")
        return 0
    if args.out is None:
        raise UserError("OUT is missing: name the folder that the data go to")
    if args.workers < 1:
        raise UserError(f"--workers {args.workers}: at least one process is needed")
    downloads = downloads_of(corpus, args.downloads or args.out / "downloads", args.mirror)
    summary = prepare(corpus, args.variant, Job(args.out, downloads, args.workers))
    counts = read_record(summary, "lines")["lines"]
    print(f"{args.out} is ready:", *(f"{name} {count:,}" for name, count in counts.items()), sep="\n  ")
    return 0
