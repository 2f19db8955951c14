"""Headlines of Gigaword: the first sentence of a report, and its headline.

B2T trains on the 3.8M pairs that Rush et al. (2015) extracted from the Annotated English Gigaword (paper, 6.2.1). The
public copies of them have '#' for each digit: org_data is UniLM's, sumdata is Harvard NLP's, whose file is reported
gone (harvardnlp/sent-summary, issue 6). That B2T's copy has real digits is an inference, from samples in another
repository of its authors (takase/control-length, encdec/README); variant ldc takes such a folder, which you extract
from the LDC's data yourself.
For models of 18 layers B2T added 13M pairs that were not published; variant extended adds pairs of your own.
Words that the extraction does not know are ``<unk>``, in the tests ``UNK``; here they are ``<unk>`` everywhere,
which fairseq reads as its own symbol, and which the BPE leaves whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fairseq_residuals.lab.data.corpus import Corpus
from fairseq_residuals.lab.data.download import Source
from fairseq_residuals.lab.data.moses import Function
from fairseq_residuals.lab.data.parallel_text import Bpe, Parallel, Part

UNKNOWN = "<unk>"


def on_drive(name: str, number: str, what: str, digest: str = "", size: int = 0) -> Source:
    urls = (
        f"https://drive.usercontent.google.com/download?id={number}&export=download&confirm=t",
        f"https://drive.google.com/uc?export=download&confirm=t&id={number}",
    )
    return Source(name, urls, digest, f"{what}; with a browser: https://drive.google.com/file/d/{number}", size)


ORG_DATA = on_drive("gigaword-org_data", "1USoQ8lJgN8kAWnUnRrupMGrPMLlDVqlV", "UniLM's org_data, a zip or tar file")
SUMDATA = on_drive(
    "summary.tar.gz",
    "0B6N7tANPyVeBNmlSX19Ld2xDU1E",
    "sumdata of github.com/harvardnlp/sent-summary",
    # as TensorFlow Datasets recorded it: tensorflow/datasets, url_checksums/gigaword.txt, commit 0dd78e7
    "sha256:ffa257f32de233bfc832e9e5e3910cb72f4023b37a86af8fee87b344baeb8a4a",
    290_866_023,
)
LDC = Source(
    "gigaword-ldc/",
    terms="LDC2012T21 is licensed by the Linguistic Data Consortium; expected is what the NAMAS scripts extract from "
    "it: {train,dev,test}.src.txt, the sentences, and .tgt.txt, the headlines",
)
EXTRA = Source(
    "gigaword-extra/",
    terms="B2T's 13M pairs of RealNews and NewsCrawl were not published, nor how they were extracted; expected are "
    "pairs of your own, a sentence and its headline a line, as train.src.txt and train.tgt.txt",
)


@dataclass(frozen=True)
class MarkUnknown:
    """Single blanks, and one name for the unknown word."""

    def __call__(self, line: str) -> str:
        return " ".join(UNKNOWN if word == "UNK" else word for word in line.split())


def treatment(language: str) -> tuple[Function, ...]:
    return (MarkUnknown(),)


def files(source: Source, name: str) -> tuple[Part, ...]:
    return (Part(source, f"{name}.{{lang}}.txt"),)


ORIGINAL = Parallel(
    languages=("src", "tgt"),
    train=files(ORG_DATA, "org_data/train"),
    valid=files(ORG_DATA, "org_data/dev"),
    tests={"test": files(ORG_DATA, "org_data/test")},
    treat_train=treatment,
    treat_held_out=treatment,
    bpe=Bpe(32000, whole=(UNKNOWN,)),
    lines={"train": 3_803_957, "valid": 189_651, "test": 1951},
)
HARVARD = replace(
    ORIGINAL,
    train=(Part(SUMDATA, "train", paths={"src": "train/train.article.txt", "tgt": "train/train.title.txt"}),),
    valid=(
        Part(SUMDATA, "valid", paths={"src": "train/valid.article.filter.txt", "tgt": "train/valid.title.filter.txt"}),
    ),
    tests={"test": (Part(SUMDATA, "test", paths={"src": "Giga/input.txt", "tgt": "Giga/task1_ref0.txt"}),)},
)
LICENSED = replace(
    ORIGINAL, train=files(LDC, "train"), valid=files(LDC, "dev"), tests={"test": files(LDC, "test")}, lines={}
)

EXTENDED = replace(ORIGINAL, train=(*ORIGINAL.train, *files(EXTRA, "train")), lines={"valid": 189_651, "test": 1951})

GIGAWORD = Corpus(
    "gigaword",
    {
        "org_data": ORIGINAL.variant("UniLM's public copy, 3.8M pairs, '#' for digits"),
        "sumdata": HARVARD.variant("Harvard NLP's public copy, the same pairs"),
        "extended": EXTENDED.variant("org_data and pairs of your own, as B2T added 13M for 18 layers"),
        "ldc": LICENSED.variant("your own extraction from LDC2012T21, digits as they are"),
    },
)
