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
TRAINED = 0.5
"""A run is trained if its training loss ends below this share of the unigram loss."""


def final_loss(losses: Sequence[float]) -> float:
    """Return the mean of the last twentieth of what was logged, at least the last one: single points are noisy."""
    return statistics.fmean(losses[-max(1, len(losses) // 20) :])


def is_trained(loss: float, unigram: float) -> bool:
    """Return whether a final training loss is far below the unigram loss; not where it is not a number."""
    return loss < TRAINED * unigram


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
