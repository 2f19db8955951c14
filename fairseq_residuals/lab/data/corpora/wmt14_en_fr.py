"""WMT14 English-French: 40.8 million pairs before cleaning.

Variant lstm follows the depth-wise LSTM paper: 32,000 merges, newstest2012 and 2013 for validation, at most 256
subwords. How the paper tokenizes is not stated; tokenizer.perl without flags is what its Neutron scripts call. These
also truecase, drop repeated pairs and filter by a vocabulary, of which the paper says nothing, and which is not done
here; it has about 36 million pairs, so something was cleaned.
Variant fairseq is prepare-wmt14en2fr.sh.
"""

from __future__ import annotations

from dataclasses import replace

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Parallel, Part
from fairseq_residuals.lab.data.sources import statmt
from fairseq_residuals.lab.data.text.clean import Limits

UN = statmt.training(
    "wmt13/training-parallel-un.tgz",
    2_365_634_246,
    "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)
GIGA = statmt.training(
    "wmt10/training-giga-fren.tar",
    2_595_102_720,
    "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)

FAIRSEQ = Parallel(
    languages=("en", "fr"),
    train=(
        Part(statmt.EUROPARL, "training/europarl-v7.fr-en.{lang}"),
        Part(statmt.COMMON_CRAWL, "commoncrawl.fr-en.{lang}"),
        Part(UN, "un/undoc.2000.fr-en.{lang}"),
        Part(statmt.NEWS_COMMENTARY_9, "training/news-commentary-v9.fr-en.{lang}"),
        Part(GIGA, "giga-fren.release2.fixed.{lang}"),
    ),
    valid=1333,
    tests={"newstest2014": statmt.sgm(statmt.TEST_2014, "test-full/newstest2014-fren")},
    treat_train=statmt.fairseq_train,
    treat_held_out=statmt.fairseq_test,
    bpe=Bpe(40000),
    limits_encoded=Limits(1, 250, 1.5),
    lines={"newstest2014": 3003},
)
LSTM = replace(
    FAIRSEQ,
    valid=tuple(Part(statmt.DEV_2014, f"dev/newstest{year}.{{lang}}") for year in (2012, 2013)),
    treat_train=statmt.tokenized,
    treat_held_out=statmt.tokenized,
    bpe=Bpe(32000),
    limits_encoded=Limits(1, 256, float("inf")),
    lines={"newstest2014": 3003, "valid": 6003},
)

CORPUS = Corpus(
    "wmt14_en_fr",
    {
        "lstm": LSTM.variant("32,000 merges, valid newstest2012 and 2013, at most 256 subwords (depth-wise LSTM)"),
        "fairseq": FAIRSEQ.variant("40,000 merges, valid every 1333rd pair"),
    },
)
