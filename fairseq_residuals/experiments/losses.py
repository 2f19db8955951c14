"""When a run counts as trained: what its loss ends at, and what a model reaches that knows only frequencies."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence

TRAINED = 0.5
"""A model whose training loss comes below this share of the unigram loss has learned more than frequencies."""


def final_loss(losses: Sequence[float]) -> float:
    """The mean of the last twentieth of what was logged, at least the last one: single points are noisy."""
    return statistics.fmean(losses[-max(1, len(losses) // 20) :])


def entropy(counts: Counter[Hashable]) -> float:
    """Bits per token of a model that knows nothing but how frequent each token is."""
    total = counts.total()
    return -sum(n / total * math.log2(n / total) for n in counts.values())
