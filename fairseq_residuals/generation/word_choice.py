"""From the output of a decoder's last layer to the words that may come next: the rest of the work for a word.

It is all of one shape in memory that stays, so that a CUDA graph of the layers can have it too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_residuals.ops.topk import topk

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
    """The candidates of one word after the first, by scores and forbidden words that are written before each."""

    def __init__(self, search: Any, rows: int, like: Tensor) -> None:
        """Choose for ``rows`` hypotheses of a search.

        Args:
            search: fairseq's generator of one model, whose settings these are.
            like: scores, whose precision and device are those of the next ones.
        """
        self.search, self.model = search, search.model.single_model
        self.before = like.new_zeros(rows)
        self.forbidden = torch.zeros(search.vocab_size, dtype=torch.bool, device=like.device)
        self.state: tuple[bool, bool] | None = None
        """Whether the words are over, and whether the end may not come yet, where it is known."""

    def prepare(self, before: Tensor, step: int, longest: int) -> None:
        """Say what the next word goes on from.

        Args:
            before: (rows, of sentences that have not left), the scores of the hypotheses so far.
            step: how many words there are.
            longest: after how many nothing may come but the end.
        """
        search, state = self.search, (step >= longest, step < self.search.min_len)
        self.before[: len(before)] = before
        if state == self.state:
            return
        self.state = over, too_early = state
        self.forbidden.fill_(over)
        self.forbidden[search.pad] = True
        self.forbidden[search.eos] = too_early
        if search.token_indices_to_suppress is not None:
            self.forbidden[search.token_indices_to_suppress] = True

    def __call__(self, x: Tensor) -> Candidates:
        """Return the candidates of features (1, rows, C)."""
        decoder = self.model.decoder
        x = x.transpose(0, 1)
        if decoder.project_out_dim is not None:
            x = decoder.project_out_dim(x)
        logits = decoder.output_layer(x)
        if self.search.temperature != 1:
            logits = logits / self.search.temperature
        lprobs = self.model.get_normalized_probs((logits, None), log_probs=True, sample=None)[:, -1]
        lprobs[:, self.search.unk] -= self.search.unk_penalty
        return best_candidates(lprobs.masked_fill(self.forbidden, -torch.inf), self.before, self.search.beam_size)
