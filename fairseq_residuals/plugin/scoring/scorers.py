"""The metrics as scorers of fairseq: ``fairseq-generate --scoring rouge`` prints them itself.

fairseq has a scorer ``sacrebleu`` and a scorer ``wer``, which agrees with jiwer; these stay as they are.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fairseq.dataclass import FairseqDataclass
from fairseq.scoring import BaseScorer, register_scorer

from fairseq_residuals.plugin.scoring.metrics import make_metric
from fairseq_residuals.plugin.scoring.text import without_unknown

REGISTERED = ("tokenized_bleu", "tokenized_bleu_lc", "compound_bleu", "rouge", "rouge_unstemmed")


class MetricScorer(BaseScorer):
    """Sums up the statistics of a metric, sentence by sentence."""

    metric_name: ClassVar[str]

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.metric = make_metric(self.metric_name)
        self.totals: list[float] = []

    def add_string(self, ref: str, pred: str) -> None:
        statistics = self.metric.statistics(pred, without_unknown(ref))
        self.totals = [sum(pair) for pair in zip(self.totals or [0.0] * len(statistics), statistics, strict=True)]

    def score(self) -> float:
        return self.metric.values(self.totals)[self.metric_name]

    def result_string(self) -> str:
        values = self.metric.values(self.totals)
        return ", ".join(f"{name} = {value:.2f}" for name, value in values.items()) + f" ({self.metric.signature()})"


for _name in REGISTERED:
    # fairseq wants every class to have a name of its own
    register_scorer(_name, dataclass=FairseqDataclass)(
        type(f"{_name.title().replace('_', '')}Scorer", (MetricScorer,), {"metric_name": _name})
    )
