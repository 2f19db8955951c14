"""Chinese-English for DLCL's Tables 3 and 4, from files that the user supplies: the data are licensed.

DLCL's own steps are word segmentation by NiuTrans (so the Chinese text is expected segmented), sentences of at most
100 words, and a BPE of 32,000 merges for each side. English is expected untokenized, and tokenized here.
"""

from __future__ import annotations

from dataclasses import replace

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Parallel, Part, untouched
from fairseq_residuals.lab.data.text.clean import Limits
from fairseq_residuals.lab.data.text.moses import Function, Tokenize

NIST = Source(
    "zh_en-small/",
    terms="it comes from the Linguistic Data Consortium (LDC2000T46, 2000T47, 2000T50, 2003E14, 2005T10, 2002E18, "
    "2007T09, 2004T08; about 1.9M pairs) and NIST's tests; expected are, a sentence a line and Chinese segmented: "
    "train.zh, train.en, and for mt04, mt05, mt06 and mt08 the files NAME.zh and NAME.en0 to NAME.en3, the references",
)
WMT18 = Source(
    "zh_en-large/",
    terms="it is made of CWMT (7.2M pairs), UN and News Commentary (4.2M) and DLCL's back-translated news (5M, not "
    "published); expected are, a sentence a line and Chinese segmented: {train,newsdev2017,newstest2017,newstest2018} "
    "with .zh and .en",
)


def treatment(language: str) -> tuple[Function, ...]:
    return untouched(language) if language == "zh" else (Tokenize(language),)


def nist(name: str) -> tuple[Part, ...]:
    return (Part(NIST, f"{name}.{{lang}}", paths={"en": f"{name}.en0"}, references=4),)


SMALL = Parallel(
    languages=("zh", "en"),
    train=(Part(NIST, "train.{lang}"),),
    valid=nist("mt06"),
    tests={name: nist(name) for name in ("mt04", "mt05", "mt08")},
    treat_train=treatment,
    treat_held_out=treatment,
    limits=Limits(1, 100, float("inf")),
    bpe=Bpe(32000, joint=False),
    dictionary=(),
)
LARGE = replace(
    SMALL,
    train=(Part(WMT18, "train.{lang}"),),
    valid=(Part(WMT18, "newsdev2017.{lang}"),),
    tests={name: (Part(WMT18, f"{name}.{{lang}}"),) for name in ("newstest2017", "newstest2018")},
)

CORPUS = Corpus(
    "zh_en",
    {
        "small": SMALL.variant("1.9M pairs of the LDC, NIST's tests with four references (Table 3)"),
        "large": LARGE.variant("16.5M pairs of WMT18, newstest2017 and 2018 (Table 4)"),
    },
)
