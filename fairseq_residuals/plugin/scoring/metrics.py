"""The metrics of the papers. Each is a vector of statistics per sentence and a function of their sum.

That one form serves files and ``fairseq-generate --scoring``, which adds sentence by sentence.

===================  ==================================================================================
``sacrebleu``        sacreBLEU, tokenizer 13a, case-sensitive
``tokenized_bleu``   ``multi-bleu.perl``: corpus BLEU-4 on the tokens as they are, without smoothing
``tokenized_bleu_lc``  the same, case-insensitive (``multi-bleu.perl -lc``)
``compound_bleu``    the same on compounds split at hyphens (``compound_split_bleu.sh`` of fairseq)
``rouge``            ROUGE-1, -2, -L: mean of the F1 of each pair, words stemmed (Porter)
``rouge_unstemmed``  the same, words as they are
``wer``              word error rate: edits of all sentences per word of all references
===================  ==================================================================================

All values are percentages.
"""

from __future__ import annotations

import importlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from fairseq_residuals.wirings.core.errors import UserError

_ROUGE_WORD = re.compile(r"[a-z0-9]+")
_MOST_CELLS = 20_000_000
"""Most numbers in the table of ROUGE-L, which has one for each word of one text and each of the other."""


class Metric(ABC):
    """One metric; an instance belongs to one evaluation."""

    takes_references: int | None = 1
    """Number of references that a sentence may have; None: any number."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def statistics(self, hypothesis: str, *references: str) -> list[float]:
        """Return the statistics of one sentence; always the same length, to be added up."""

    @abstractmethod
    def values(self, totals: Sequence[float]) -> dict[str, float]:
        """Return scores from the sum of the statistics; the key ``name`` is the value to select a model by.

        NaN where nothing was counted.
        """

    @abstractmethod
    def signature(self) -> str:
        """Return what was computed, by which version of what; valid after the first sentence."""


class Bleu(Metric):
    """Corpus BLEU through sacreBLEU."""

    takes_references = None

    def __init__(self, name: str, prepare: Callable[[str], str] = str, label: str = "BLEU", **options: Any) -> None:
        super().__init__(name)
        from sacrebleu.metrics import BLEU

        self.prepare = prepare
        self.label = label
        self.bleu = BLEU(**options)

    def statistics(self, hypothesis: str, *references: str) -> list[float]:
        """Return lengths of hypothesis and closest reference, then matched and all n-grams of orders 1 to 4."""
        result = self.bleu.corpus_score([self.prepare(hypothesis)], [[self.prepare(r)] for r in references])
        return [result.sys_len, result.ref_len, *result.counts, *result.totals]

    def values(self, totals: Sequence[float]) -> dict[str, float]:
        sys_len, ref_len, *ngrams = (round(total) for total in totals)
        order = self.bleu.max_ngram_order
        result = self.bleu.compute_bleu(
            ngrams[:order], ngrams[order:], sys_len, ref_len, smooth_method=self.bleu.smooth_method
        )
        return {self.name: result.score}

    def signature(self) -> str:
        return f"{self.label}|{self.bleu.get_signature()}"


class Rouge(Metric):
    """Mean over pairs of ROUGE F1, by Google's ``rouge-score``.

    It lower-cases, and splits words at everything but a-z and 0-9: text in other scripts scores 0.
    """

    KINDS = ("rouge1", "rouge2", "rougeL")

    def __init__(self, name: str, stem: bool) -> None:
        super().__init__(name)
        self.stem = stem
        self.scorer = _need("rouge_score.rouge_scorer", "rouge-score").RougeScorer(self.KINDS, use_stemmer=stem)

    def statistics(self, hypothesis: str, *references: str) -> list[float]:
        """Return F1 of ROUGE-1, -2 and -L, and 1.

        Raises:
            UserError: both texts are so long that ROUGE-L would take gigabytes.
        """
        first, second = (len(_ROUGE_WORD.findall(text.lower())) for text in (hypothesis, references[0]))
        if first * second > _MOST_CELLS:
            raise UserError(f"one line has {first:,} words, its reference {second:,}: {self.name} compares sentences")
        scores = self.scorer.score(*references, hypothesis)
        return [*(float(scores[kind].fmeasure) for kind in self.KINDS), 1.0]

    def values(self, totals: Sequence[float]) -> dict[str, float]:
        *sums, pairs = totals
        values = {
            kind: 100 * total / pairs if pairs else math.nan for kind, total in zip(self.KINDS, sums, strict=True)
        }
        return values | {self.name: sum(values.values()) / len(values)}

    def signature(self) -> str:
        stem = "porter" if self.stem else "no"
        return f"ROUGE-1/2/L|F1|mean:pairs|stem:{stem}|rouge-score:{version('rouge-score')}"


class Wer(Metric):
    """Word error rate of a corpus, by ``jiwer``: case and punctuation as they are.

    Words that are recognised where the reference is empty are insertions, as everywhere else.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.jiwer = _need("jiwer", "jiwer")

    def statistics(self, hypothesis: str, *references: str) -> list[float]:
        """Return edits and words of the reference."""
        (reference,) = (" ".join(text.split()) for text in references)
        hypothesis = " ".join(hypothesis.split())
        if not reference:
            return [float(len(hypothesis.split())), 0.0]
        counts = self.jiwer.process_words(reference, hypothesis)
        edits = counts.substitutions + counts.deletions + counts.insertions
        return [float(edits), float(counts.hits + counts.substitutions + counts.deletions)]

    def values(self, totals: Sequence[float]) -> dict[str, float]:
        edits, words = totals
        return {self.name: 100 * edits / words if words else math.nan}

    def signature(self) -> str:
        return f"WER|corpus|case:mixed|tok:none|empty-refs:insertions|jiwer:{version('jiwer')}"


def multi_bleu_tokens(line: str) -> str:
    """Put spaces where ``multi-bleu.perl`` splits a line: at ASCII white space only; sacreBLEU splits at any."""
    return " ".join(re.sub(r"\s", "\N{OPEN BOX}", token) for token in re.split(r"[ \t\n\r\f\v]+", line) if token)


def split_compounds(line: str) -> str:
    r"""Turn ``a-b`` into ``a ##AT##-##AT## b``, from left to right without overlap.

    Of ``a-b-c`` only the first hyphen is split, since the ``b`` is used up. Perl's ``\S`` is a byte that is not ASCII
    white space, so that a letter of several bytes is not used up.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line.encode()).decode()


_LOWER_CASE = str.maketrans(ascii_uppercase, ascii_lowercase)
"""Perl's lc of bytes."""
_MULTI_BLEU: dict[str, Any] = {"tokenize": "none", "smooth_method": "none", "force": True}

METRICS: dict[str, Callable[[], Metric]] = {
    "sacrebleu": lambda: Bleu("sacrebleu", tokenize="13a"),
    "tokenized_bleu": lambda: Bleu("tokenized_bleu", multi_bleu_tokens, **_MULTI_BLEU),
    "tokenized_bleu_lc": lambda: Bleu(
        "tokenized_bleu_lc",
        lambda line: multi_bleu_tokens(line).translate(_LOWER_CASE),
        label="BLEU|lower case:a-z",
        **_MULTI_BLEU,
    ),
    "compound_bleu": lambda: Bleu(
        "compound_bleu",
        lambda line: multi_bleu_tokens(split_compounds(line)),
        label="BLEU|compounds:split",
        **_MULTI_BLEU,
    ),
    "rouge": lambda: Rouge("rouge", stem=True),
    "rouge_unstemmed": lambda: Rouge("rouge_unstemmed", stem=False),
    "wer": lambda: Wer("wer"),
}


def make_metric(name: str) -> Metric:
    """Return a new instance of the metric called ``name``.

    Raises:
        UserError: there is none, or what it is computed with is not installed.
    """
    if name not in METRICS:
        raise UserError(f"there is no metric {name!r}; the metrics are {', '.join(METRICS)}")
    return METRICS[name]()


@dataclass(frozen=True)
class Scores:
    """The values of one metric on one test set, in percent, and what they are."""

    metric: str
    values: dict[str, float]
    signature: str

    @property
    def value(self) -> float:
        """The value that the metric is named after."""
        return self.values[self.metric]


def score(metric: str, hypotheses: Sequence[str], *references: Sequence[str]) -> Scores:
    """Return scores a test set. Several references are several sequences, each as long as the hypotheses.

    Raises:
        UserError: an unknown metric, unequal numbers of sentences, none at all, an empty reference (BLEU), no words in
            any reference (WER), or more references than the metric takes.
    """
    computed = make_metric(metric)
    if not hypotheses or not references:
        raise UserError("there is nothing to score: one hypothesis and one reference per sentence are needed")
    for lines in references:
        if len(lines) != len(hypotheses):
            raise UserError(f"there are {len(hypotheses)} hypotheses but {len(lines)} references; each needs one")
    if computed.takes_references is not None and len(references) > computed.takes_references:
        raise UserError(f"{metric} takes one reference per sentence, not {len(references)}")
    for number, lines in enumerate(zip(*references, strict=True) if isinstance(computed, Bleu) else (), 1):
        if not all(line.strip() for line in lines):
            raise UserError(f"{metric}: reference {number} is empty, but every sentence needs one")
    statistics = [computed.statistics(*sentence) for sentence in zip(hypotheses, *references, strict=True)]
    totals = [sum(column) for column in zip(*statistics, strict=True)]
    scores = Scores(metric, computed.values(totals), computed.signature())
    if math.isnan(scores.value):
        raise UserError(f"{metric} cannot be computed: the references have no words")
    return scores


def _need(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.partition(".")[0]):
            raise
        raise UserError(f"this metric needs the package {package}: pip install {package}") from None
