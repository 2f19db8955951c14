"""OPUS-100: English and up to 99 other languages, for one model from and to all of them.

As in the script that ResiDual names: no tokenizer and no cleaning, one SentencePiece BPE of 64,000 pieces with full
character coverage over all training text (here over 10 million sentences of it, chosen at random, as OPUS-100's
authors do: all 110 million do not fit into memory). Languages without validation and test data (an, dz, hy, mn, yo)
are left out, which leaves 94 besides English. The text has no language tags: fairseq's task adds them
(``--encoder-langtok tgt``), and reads both directions of a pair from one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fairseq_residuals.lab.data import sentence_pieces
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.sentence_pieces import Pair, Pieces
from fairseq_residuals.lab.data.steps import Step

ARCHIVE = Source(
    "opus-100-corpus-v1.0.tar.gz",
    (
        "https://object.pouta.csc.fi/OPUS-100/v1.0/opus-100-corpus-v1.0.tar.gz",
        "https://data.statmt.org/opus-100-corpus/v1.0/opus-100-corpus-v1.0.tar.gz",
    ),
)
PIECES = Pieces("bpe", 64000, sentences=10_000_000)


def pairs(unpacked: Path) -> Iterator[Pair]:
    """Yield the pairs that have all three data sets, by name."""
    for folder in sorted(unpacked.glob("**/supervised/*-*")):
        pair = Pair.of(folder, "opus.{pair}-{split}.{language}")
        if all(pair.file(split, lang).is_file() for split in sentence_pieces.SPLITS for lang in pair.languages):
            yield pair


def plan(job: Job) -> tuple[Step, ...]:
    return sentence_pieces.steps(job, job.unpacked(ARCHIVE, ("*/supervised/*/opus.*",)), pairs, PIECES, ARCHIVE)


# which directions there are is told by data-bin/lang_pairs.txt; the test set of each is called test
OPUS100 = Corpus("opus100", {"all": Variant(plan, (ARCHIVE,), "all languages that have test data", {})})
