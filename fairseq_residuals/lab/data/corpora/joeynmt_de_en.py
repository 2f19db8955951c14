"""The JoeyNMT exercise's German-English: 100,000 pairs, tokenized, with a BPE of 3,200 merges and its vocabulary.

As in JoeyNMT, pairs of more than 100 subwords are left out of training.

The target side of the test set is untokenized, unlike all else, so only the validation set's perplexity means
anything; the paper reports no other. The dictionary is the exercise's, 4,113 words, and fairseq's four symbols.
"""

from __future__ import annotations

from fairseq_residuals.lab.data.pipeline.corpus import Corpus
from fairseq_residuals.lab.data.pipeline.download import Source
from fairseq_residuals.lab.data.pipeline.parallel_text import Bpe, Parallel, Part, untouched
from fairseq_residuals.lab.data.text.clean import Limits

ADDRESS = "https://files.ifi.uzh.ch/cl/archiv/2021/mt21"
DATA = Source("joeynmt-data.tar.gz", (f"{ADDRESS}/data.tar.gz",))
MODELS = Source("joeynmt-shared_models.tar.gz", (f"{ADDRESS}/shared_models.tar.gz",))

EXERCISE = Parallel(
    languages=("de", "en"),
    train=(Part(DATA, "data/train.{lang}"),),
    valid=(Part(DATA, "data/dev.{lang}"),),
    tests={"test": (Part(DATA, "data/test.{lang}"),)},
    treat_train=untouched,
    treat_held_out=untouched,
    bpe=Bpe(codes=(DATA, "data/codes3200.bpe")),
    vocabulary=(MODELS, "shared_models/joint-vocab.txt"),
    limits_encoded=Limits(1, 100, float("inf")),
    lines={"train": 100_000, "valid": 500, "test": 2999},
)

CORPUS = Corpus("joeynmt_de_en", {"exercise": EXERCISE.variant("as the exercise has it")})
