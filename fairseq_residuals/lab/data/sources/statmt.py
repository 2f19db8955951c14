"""What several corpora take from the workshops on machine translation (statmt.org), and how it is treated.

The digests of the archives of test sets are those that sacreBLEU states, that of WMT14's development sets is Sockeye's
(awslabs/sockeye, contrib/autopilot/tasks.py, commit fea3d59). Sizes and digests of training data are those that
TensorFlow Datasets recorded when it downloaded them (tensorflow/datasets, url_checksums/wmt1?_translate.txt, commit
333639b).
"""

from __future__ import annotations

from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Part
from fairseq_residuals.lab.data.text.moses import Function, Normalize, PlainApostrophe, RemoveNonPrinting, Tokenize


def statmt(name: str, path: str, digest: str = "", size: int = 0) -> Source:
    """Return an archive that lies at the same path on both servers of the workshops."""
    return Source(name, (f"https://www.statmt.org/{path}", f"https://data.statmt.org/{path}"), digest, size=size)


def training(path: str, size: int, sha256: str) -> Source:
    """Return an archive of training data, called here as there."""
    return statmt(path.rpartition("/")[2], path, f"sha256:{sha256}", size)


EUROPARL = training(
    "wmt13/training-parallel-europarl-v7.tgz",
    657_632_379,
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)
COMMON_CRAWL = training(
    "wmt13/training-parallel-commoncrawl.tgz",
    918_311_367,
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)
NEWS_COMMENTARY_9 = training(
    "wmt14/training-parallel-nc-v9.tgz",
    80_418_416,
    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)
DEV_2014 = statmt("wmt14-dev.tgz", "wmt14/dev.tgz", "md5:88ba3fc60b2278d59277122e1c7dd6e7")
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
