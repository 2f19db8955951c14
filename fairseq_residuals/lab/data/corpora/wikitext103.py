"""WikiText-103: articles of Wikipedia in words, 103 million of them, with no further treatment."""

from __future__ import annotations

from pathlib import Path

from fairseq_residuals.lab.data.binarize import binarize
from fairseq_residuals.lab.data.corpus import Corpus, Job, Variant
from fairseq_residuals.lab.data.download import Source, differs_from
from fairseq_residuals.lab.data.steps import Step, share
from fairseq_residuals.wirings.core.errors import UserError

ARTICLES = Source(
    "wikitext-103-v1.zip",
    (
        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
        "https://data.deepai.org/wikitext-103.zip",
    ),
    terms="the first address, its authors', is reported dead since 2024; copies of wikitext-103-v1.zip with "
    "wikitext-103/wiki.train.tokens inside are kept in many places",
)
FILES = {split: f"wikitext-103/wiki.{split}.tokens" for split in ("train", "valid", "test")}
# of the files, not of the archive: a copy elsewhere may be packed in another way. As GluonNLP has them: dmlc/gluon-nlp,
# src/gluonnlp/data/corpora/wikitext.py, commit 3413f84
DIGESTS = {
    "train": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
    "valid": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
    "test": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
}


def plan(job: Job) -> tuple[Step, ...]:
    def take(folder: Path, unpacked: Path) -> None:
        with job.trusting(ARTICLES):
            for split, name in FILES.items():
                if job.stand_in is None and (wrong := differs_from(DIGESTS[split], unpacked / name)):
                    raise UserError(f"{Path(name).name} {wrong}: it is another text")
                share(unpacked / name, folder / split)

    def binary(folder: Path, text: Path) -> None:
        files = [f"--{split}pref={text / split}" for split in FILES]
        binarize(folder, ["--only-source", *files], job.workers)

    unpacked = job.unpacked(ARTICLES, tuple(FILES.values()))
    text = Step("text", take, {}, (unpacked,))
    return (text, Step("data-bin", binary, {"flags": ["--only-source"]}, (text,)))


WIKITEXT103 = Corpus(
    "wikitext103", {"words": Variant(plan, (ARTICLES,), "all 267,735 words, no threshold", {"test": "test"})}
)
