"""WMT15 Czech-English for the depth-wise LSTM's Table 5.

The paper has "about 10M" pairs, 32,000 merges, newstest2013 for validation, newstest2015 for the test, at most 256
subwords. Which part of the 16 million pairs of that year it took is stated nowhere: variant czeng takes what the user
supplies of CzEng 1.0 beside the corpora that anybody may download, which are variant public (about 1 million pairs).
"""

from __future__ import annotations

from dataclasses import replace

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Parallel, Part
from fairseq_residuals.lab.data.sources import statmt
from fairseq_residuals.lab.data.text.clean import Limits

NEWS_COMMENTARY_10 = statmt.training(
    "wmt15/training-parallel-nc-v10.tgz",
    125_136_590,
    "11e053e7ea29e87e69a1ad05e61cb559820947ecec144ea8c1d6cf05017c9602",
)
DEV_2015 = statmt.statmt("wmt15-dev-v2.tgz", "wmt15/dev-v2.tgz")
CZENG = Source(
    "czeng-1.0/",
    terms="CzEng 1.0 is free after registration at https://ufal.mff.cuni.cz/czeng; its plain text, a sentence a line, "
    "is expected as train.cs and train.en",
)

PUBLIC = Parallel(
    languages=("cs", "en"),
    train=(
        Part(statmt.EUROPARL, "training/europarl-v7.cs-en.{lang}"),
        Part(statmt.COMMON_CRAWL, "commoncrawl.cs-en.{lang}"),
        Part(NEWS_COMMENTARY_10, "news-commentary-v10.cs-en.{lang}"),
    ),
    valid=(Part(DEV_2015, "dev/newstest2013.{lang}"),),
    tests={"newstest2015": statmt.sgm(statmt.TEST_2015, "newstest2015-csen")},
    treat_train=statmt.tokenized,
    treat_held_out=statmt.tokenized,
    bpe=Bpe(32000),
    limits_encoded=Limits(1, 256, float("inf")),
    lines={"valid": 3000, "newstest2015": 2656},
)
WITH_CZENG = replace(PUBLIC, train=(*PUBLIC.train, Part(CZENG, "train.{lang}")))

CORPUS = Corpus(
    "wmt15_cs_en",
    {
        "czeng": WITH_CZENG.variant("with the CzEng 1.0 that you supply"),
        "public": PUBLIC.variant("what can be downloaded: Europarl 7, Common Crawl, News Commentary 10"),
    },
)
