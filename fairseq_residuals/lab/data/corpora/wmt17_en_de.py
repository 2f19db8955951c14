"""WMT17 English-German as fairseq's prepare-wmt14en2de.sh makes it, which ResiDual's appendix points to.

Validation data are every 100th pair of the training data; the test set is newstest2014. Variant icml17 is the
script's flag --icml17: News Commentary 9 in place of 12.
"""

from __future__ import annotations

from dataclasses import replace

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Parallel, Part
from fairseq_residuals.lab.data.sources import statmt
from fairseq_residuals.lab.data.text.clean import Limits

NEWS_COMMENTARY_12 = statmt.training(
    "wmt17/translation-task/training-parallel-nc-v12.tgz",
    168_591_139,
    "2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2",
)
OTHERS = (
    Part(statmt.EUROPARL, "training/europarl-v7.de-en.{lang}"),
    Part(statmt.COMMON_CRAWL, "commoncrawl.de-en.{lang}"),
)

WMT17 = Parallel(
    languages=("en", "de"),
    train=(*OTHERS, Part(NEWS_COMMENTARY_12, "training/news-commentary-v12.de-en.{lang}")),
    valid=100,
    tests={"newstest2014": statmt.sgm(statmt.TEST_2014, "test-full/newstest2014-deen")},
    treat_train=statmt.fairseq_train,
    treat_held_out=statmt.fairseq_test,
    bpe=Bpe(40000),
    limits_encoded=Limits(1, 250, 1.5),
    lines={"newstest2014": 3003},
)
ICML17 = replace(WMT17, train=(*OTHERS, Part(statmt.NEWS_COMMENTARY_9, "training/news-commentary-v9.de-en.{lang}")))

CORPUS = Corpus(
    "wmt17_en_de",
    {
        "wmt17": WMT17.variant("with News Commentary 12"),
        "icml17": ICML17.variant("with News Commentary 9, as in Convolutional Sequence to Sequence Learning"),
    },
)
