"""What a loss says of a run: where it ended, and whether the model has learned more than how frequent tokens are.

All losses are negative log-likelihoods in bits per target token.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

Token = TypeVar("Token", bound=Hashable)


def final_loss(losses: Sequence[float]) -> float:
    """Return the mean of the last twentieth of what was logged, at least the last one: single points are noisy."""
    return statistics.fmean(losses[-max(1, len(losses) // 20) :])


def unigram_loss(train: Counter[Token], scored: Counter[Token] | None = None, words: int = 0) -> float:
    """Return the loss of a model that knows nothing but how frequent each token is.

    Args:
        train: how often each token occurs where the model learns.
        scored: how often each occurs where the loss is taken; None: the same text, which makes it the entropy.
        words: the size of the vocabulary, where each of its words counts once more, so that none is impossible.
    """
    total = train.total() + words
    if scored is None:
        return -sum(n / total * math.log2(n / total) for n in train.values())
    added = int(words > 0)
    bits = (n * math.log2((train[token] + added) / total) for token, n in scored.items())
    return -math.fsum(bits) / scored.total()
