"""Scores: the metrics of the papers, for files, for fairseq-generate and for validation."""

from fairseq_residuals.lab.scoring.perplexity import (
    Perplexity,
    joeynmt_perplexity,
    perplexity_of_eval_lm,
    perplexity_of_validate,
)
from fairseq_residuals.lab.scoring.retokenize import retokenize
from fairseq_residuals.plugin.scoring.metrics import METRICS, Scores, make_metric, score
from fairseq_residuals.plugin.scoring.text import Generation, read_generation, read_lines

__all__ = [
    "METRICS",
    "Generation",
    "Perplexity",
    "Scores",
    "joeynmt_perplexity",
    "make_metric",
    "perplexity_of_eval_lm",
    "perplexity_of_validate",
    "read_generation",
    "read_lines",
    "retokenize",
    "score",
]
