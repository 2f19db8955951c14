"""WMT14 English-German, 4.5 million pairs: the corpus of B2T, DLCL, ResiDual and the depth-wise LSTM.

The archive that B2T and DLCL used, wmt16_en_de.tar.gz, is no longer published. It is rebuilt as google/seq2seq's
bin/data/wmt16_en_de.sh made it, with the one joint BPE of 32,000 merges that the archive had (the script at its
latest commit learns two of 50,000). The tokenizer of that time left an abbreviation at the end of a line whole.

The sources of 2014 to 2016 are the sgm files that sacreBLEU scores against (the archive had the German-English ones,
with the same sentences). Test sets are not cleaned, so that every line is scored. Variant ``google`` takes the
archive's training data and codes, and its test sets from the same sources as all, so that scores have untokenized
references. Variant ``lstm`` leaves out what Neutron's scripts do and the paper does not tell: truecasing, dropping
repeated pairs, filtering by a vocabulary. Its News Commentary is version 11 like the others', which is an inference:
that paper says WMT14, whose own was version 9, and names no archive.
"""

from __future__ import annotations

from dataclasses import replace

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Parallel, Part
from fairseq_residuals.lab.data.sources import statmt
from fairseq_residuals.lab.data.text.bpe import Join
from fairseq_residuals.lab.data.text.clean import Limits
from fairseq_residuals.lab.data.text.moses import Blanks, Function, Tokenize

EUROPARL = Source(
    "europarl-v7-de-en.tgz",
    ("https://www.statmt.org/europarl/v7/de-en.tgz",),
    # as GluonNLP recorded it: dmlc/gluon-nlp, scripts/datasets/url_checksums/wmt.txt, commit 01122db
    "sha1:53bb5408d22977c89284bd755717e6bbb5b12bc5",
    size=197_785_698,
)
NEWS_COMMENTARY_11 = statmt.training(
    "wmt16/translation-task/training-parallel-nc-v11.tgz",
    75_178_032,
    "cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
)
ARCHIVE = Source(
    "wmt16_en_de.tar.gz",
    terms="Google no longer publishes it (it was the file 0B_bZck-ksdkpM25jRUN2X2UxMm8 of Google Drive); "
    "variant b2t rebuilds it",
)
SCALING_NMT = ("--joined-dictionary", "--nwordssrc", "32768", "--nwordstgt", "32768")


def tokenized(language: str) -> tuple[Function, ...]:
    return (Tokenize(language, split_last_period=False),)


def joined(language: str) -> tuple[Function, ...]:
    return (Blanks(), Join())


def news(year: int) -> Part:
    return Part(statmt.DEV_2016, f"dev/newstest{year}.{{lang}}")


B2T = Parallel(
    languages=("en", "de"),
    train=(
        Part(EUROPARL, "europarl-v7.de-en.{lang}"),
        Part(statmt.COMMON_CRAWL, "commoncrawl.de-en.{lang}"),
        Part(NEWS_COMMENTARY_11, "news-commentary-v11.de-en.{lang}"),
    ),
    valid=(news(2013),),
    tests={
        "newstest2014": statmt.sgm(statmt.TEST_2014, "newstest2014-deen"),
        **{f"newstest{year}": (news(year),) for year in (2010, 2011, 2012, 2013)},
        "newstest2015": statmt.sgm(statmt.TEST_2015, "newstest2015-ende"),
        "newstest2016": statmt.sgm(statmt.TEST_2016, "newstest2016-ende"),
    },
    treat_train=tokenized,
    treat_held_out=tokenized,
    limits=Limits(1, 80),
    bpe=Bpe(32000),
    dictionary=SCALING_NMT,
    lines={
        "valid": 3000,
        "newstest2010": 2489,
        "newstest2011": 3003,
        "newstest2012": 3003,
        "newstest2013": 3000,
        "newstest2014": 3003,
        "newstest2015": 2169,
        "newstest2016": 2999,
    },
)
DLCL = replace(B2T, dictionary=("--joined-dictionary", "--thresholdsrc", "5", "--thresholdtgt", "5"))
LSTM = replace(
    B2T,
    valid=(news(2012), news(2013)),
    limits=None,
    limits_encoded=Limits(1, 256, float("inf")),
    dictionary=("--joined-dictionary",),
    lines={**B2T.lines, "valid": 6003},
)
GOOGLE = replace(
    B2T,
    train=(Part(ARCHIVE, "train.tok.clean.bpe.32000.{lang}"),),
    treat_train=joined,
    limits=None,
    bpe=Bpe(codes=(ARCHIVE, "bpe.32000")),
)

CORPUS = Corpus(
    "wmt14_en_de",
    {
        "b2t": B2T.variant("rebuilt; 32,768 words (B2T, ResiDual)"),
        "dlcl": DLCL.variant("rebuilt; all words that occur 5 times (DLCL)"),
        "lstm": LSTM.variant("valid newstest2012 and 2013, at most 256 subwords (depth-wise LSTM)"),
        "google": GOOGLE.variant("your own copy of wmt16_en_de.tar.gz; 32,768 words"),
    },
)
