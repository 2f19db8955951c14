"""What several corpora take from the workshops on machine translation (statmt.org), and how it is treated.

The digests are those that sacreBLEU states for the archives of the test sets.
"""

from __future__ import annotations

from fairseq_residuals.data.pipeline.download import Source
from fairseq_residuals.data.pipeline.parallel_text import Part
from fairseq_residuals.data.text.moses import Function, Normalize, PlainApostrophe, RemoveNonPrinting, Tokenize


def statmt(name: str, path: str, digest: str = "") -> Source:
    """Return an archive that lies at the same path on both servers of the workshops."""
    return Source(name, (f"https://www.statmt.org/{path}", f"https://data.statmt.org/{path}"), digest)


EUROPARL = statmt("training-parallel-europarl-v7.tgz", "wmt13/training-parallel-europarl-v7.tgz")
COMMON_CRAWL = statmt("training-parallel-commoncrawl.tgz", "wmt13/training-parallel-commoncrawl.tgz")
NEWS_COMMENTARY_9 = statmt("training-parallel-nc-v9.tgz", "wmt14/training-parallel-nc-v9.tgz")
DEV_2014 = statmt("wmt14-dev.tgz", "wmt14/dev.tgz")
DEV_2016 = statmt("wmt16-dev.tgz", "wmt16/translation-task/dev.tgz", "md5:4a3dc2760bb077f4308cce96b06e6af6")
TEST_2014 = statmt("wmt14-test-full.tgz", "wmt14/test-full.tgz", "md5:a8cd784e006feb32ac6f3d9ec7eb389a")
TEST_2015 = statmt("wmt15-test.tgz", "wmt15/test.tgz", "md5:67e3beca15e69fe3d36de149da0a96df")
TEST_2016 = statmt("wmt16-test.tgz", "wmt16/translation-task/test.tgz", "md5:3d809cd0c2c86adb2c67034d15c4e446")


def sgm(source: Source, path: str) -> tuple[Part, ...]:
    """Return a test set as the workshops publish it: ``path`` is what comes before ``-src`` and ``-ref``."""
    return (Part(source, f"{path}-{{side}}.{{lang}}.sgm", "sgm"),)


def fairseq_train(language: str) -> tuple[Function, ...]:
    """Return the treatment of training data in fairseq's prepare-wmt14en2de.sh and prepare-wmt14en2fr.sh."""
    return (Normalize(language), RemoveNonPrinting(), Tokenize(language, dashes=True))


def fairseq_test(language: str) -> tuple[Function, ...]:
    """Return that of test data in the same scripts: no normalisation, but typographic apostrophes become plain."""
    return (PlainApostrophe(), Tokenize(language, dashes=True))


def tokenized(language: str) -> tuple[Function, ...]:
    """Return tokenizer.perl without flags."""
    return (Tokenize(language),)
