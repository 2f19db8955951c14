"""Headlines of Gigaword: the first sentence of a report, and its headline.

B2T trains on the 3.8M pairs that Rush et al. (2015) extracted from the Annotated English Gigaword (paper, 6.2.1). The
public copy of them, UniLM's org_data, has '#' for each digit. That B2T's has real digits is an inference, from samples
in another repository of its authors (takase/control-length, encdec/README).
For models of 18 layers B2T added 13M pairs that were not published, nor how they were extracted.
Words that the extraction does not know are ``<unk>``, in the tests ``UNK``; here they are ``<unk>`` everywhere,
which fairseq reads as its own symbol, and which the BPE leaves whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_residuals.lab.data.corpus import Corpus
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.moses import Function
from fairseq_residuals.lab.data.parallel_text import Bpe, Parallel, Part

UNKNOWN = "<unk>"


ORG_DATA = Source(
    "gigaword-org_data",
    (
        "https://drive.usercontent.google.com/download?id=1USoQ8lJgN8kAWnUnRrupMGrPMLlDVqlV&export=download&confirm=t",
        "https://drive.google.com/uc?export=download&confirm=t&id=1USoQ8lJgN8kAWnUnRrupMGrPMLlDVqlV",
    ),
    terms="UniLM's org_data, a zip or tar file; with a browser: https://drive.google.com/file/d/"
    "1USoQ8lJgN8kAWnUnRrupMGrPMLlDVqlV",
)


@dataclass(frozen=True)
class MarkUnknown:
    """Single blanks, and one name for the unknown word."""

    def __call__(self, line: str) -> str:
        return " ".join(UNKNOWN if word == "UNK" else word for word in line.split())


def treatment(language: str) -> tuple[Function, ...]:
    return (MarkUnknown(),)


def files(name: str) -> tuple[Part, ...]:
    return (Part(ORG_DATA, f"org_data/{name}.{{lang}}.txt"),)


ORIGINAL = Parallel(
    languages=("src", "tgt"),
    train=files("train"),
    valid=files("dev"),
    tests={"test": files("test")},
    treat_train=treatment,
    treat_held_out=treatment,
    bpe=Bpe(32000, whole=(UNKNOWN,)),
    lines={"train": 3_803_957, "valid": 189_651, "test": 1951},
)

GIGAWORD = Corpus("gigaword", {"org_data": ORIGINAL.variant("UniLM's public copy, 3.8M pairs, '#' for digits")})
