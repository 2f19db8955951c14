"""From what a decoder feeds its output projection to the words that may come next.

It is all of one shape in memory that stays, so that the CUDA graph of a word can have it too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.wirings.ops.topk import topk

Candidates = tuple[Tensor, Tensor, Tensor]
"""Scores, words, and which hypothesis of the sentence goes on; each (sentences, candidates), best first."""


def best_candidates(lprobs: Tensor, before: Tensor | None, beam: int) -> Candidates:
    """Return the best ways to go on, twice as many as the beam is wide in case half of them end.

    Args:
        lprobs: (rows, vocabulary), of ``beam`` rows a sentence; of the first word, one.
        before: (rows), the scores of the hypotheses so far; None: this is the first word.
    """
    width, vocabulary = 1 if before is None else beam, lprobs.size(1)
    k = min(2 * beam, vocabulary)
    best, words = topk(lprobs, k)
    if before is not None:
        best = best + before[:, None]
    best, words = best.view(-1, width * k), words.view(-1, width * k)
    # a row of which some is not a number has no words to go on with
    best = best.masked_fill(best.isnan(), -torch.inf)
    found, where = best.topk(min(2 * beam, width * vocabulary - 1))
    return found, words.gather(1, where), where // k


class WordChoice:
    """The candidates of one word after the first, by forbidden words that are written before each."""

    def __init__(self, search: Any, longest: int, device: torch.device) -> None:
        """Choose for a search.

        Args:
            search: fairseq's generator of one model, whose settings these are.
            longest: after how many words nothing may come but the end.
        """
        self.search, self.longest = search, longest
        self.forbidden = torch.zeros(search.vocab_size, dtype=torch.bool, device=device)
        self.state: tuple[bool, bool] | None = None
        """Whether the words are over, and whether the end may not come yet, where it is known."""

    def prepare(self, step: int) -> None:
        """Say that there are ``step`` words so far."""
        search, state = self.search, (step >= self.longest, step < self.search.min_len)
        if state == self.state:
            return
        self.state = over, too_early = state
        self.forbidden.fill_(over)
        self.forbidden[search.pad] = True
        self.forbidden[search.eos] = too_early
        if search.token_indices_to_suppress is not None:
            self.forbidden[search.token_indices_to_suppress] = True

    def __call__(self, features: Tensor, before: Tensor) -> Candidates:
        """Return the candidates.

        Args:
            features: (rows, 1, C), what the output projection is fed.
            before: (rows), the scores of the hypotheses so far.
        """
        lprobs = log_probs(self.search, features)
        lprobs[:, self.search.unk] -= self.search.unk_penalty
        return best_candidates(lprobs.masked_fill(self.forbidden, -torch.inf), before, self.search.beam_size)


def log_probs(search: Any, features: Tensor) -> Tensor:
    """Return the log-probabilities (rows, vocabulary) of features (rows, 1, C), which ``search`` has no rules for."""
    model = search.model.single_model
    logits = model.decoder.output_layer(features)
    if search.temperature != 1:
        logits = logits / search.temperature
    return model.get_normalized_probs((logits, None), log_probs=True, sample=None)[:, -1]  # type: ignore[no-any-return]
