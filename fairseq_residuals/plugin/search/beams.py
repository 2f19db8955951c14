"""The hypotheses of a beam search: their words and scores so far, the words that may come next, and the choice.

Every word does the same work in memory that stays, so that a CUDA graph can have it. Rows are hypotheses, sentence by
sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 128
"""Entries of a row of which :func:`topk` takes the maximum first."""
Candidates = tuple[Tensor, Tensor, Tensor]
"""Scores, words, and which hypothesis of the sentence goes on; each (sentences, candidates), best first."""


def topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest entries of each row and their indices, (R, V) -> 2 times (R, k), largest first.

    PyTorch's topk looks at every entry several times. The k largest entries are in the k chunks with the largest
    maxima, or in the rest of the row that fills no chunk. Which of several equal entries is found is left open, as by
    :func:`torch.topk`.
    """
    rows, width = scores.shape
    chunks = width // CHUNK
    if chunks <= k:
        values, indices = scores.topk(k)
        return values, indices
    best_chunks = scores[:, : chunks * CHUNK].unflatten(1, (chunks, CHUNK)).amax(-1).topk(k).indices
    within = torch.arange(CHUNK, device=scores.device)
    rest = torch.arange(chunks * CHUNK, width, device=scores.device)
    candidates = torch.cat([(best_chunks[:, :, None] * CHUNK + within).flatten(1), rest.expand(rows, -1)], 1)
    values, places = scores.gather(1, candidates).topk(k)
    return values, candidates.gather(1, places)


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


class Choice(NamedTuple):
    """Words chosen to follow a word, of B sentences with K hypotheses each."""

    parents: Tensor
    """(B, K), from which hypothesis of its sentence each one goes on."""
    words: Tensor
    """(B, K), the next word of each hypothesis."""
    scores: Tensor
    """(B, K), score of each hypothesis with its next word."""
    flags: Tensor
    """(B, 2, K): which of the K best candidates end a hypothesis, and which hypotheses are dragged along, ignored."""
    ending: Tensor
    """(B, K), which hypothesis of its sentence each of the K best candidates belongs to."""
    ending_scores: Tensor
    """(B, K), scores of the K best candidates."""


def choose(candidates: Candidates, ignored: Tensor, eos: int) -> Choice:
    """Choose from candidates, best first, those that go on.

    Args:
        ignored: (B, K), the hypotheses that are.
    """
    found, words, parents = candidates
    beam = ignored.size(1)
    ends = words.eq(eos) & found.ne(-torch.inf)
    # a hypothesis ends only if its end is among the best of as many candidates as the beam is wide
    ended = ends[:, :beam] & ~ignored
    # the best candidates that do not end go on; where there are too few, others are dragged along, ignored
    last = torch.cat([ended | ignored, ends[:, beam:]], 1)
    size = 2 * beam
    order = last * size + torch.arange(words.size(1), device=words.device)
    order, going_on = order.topk(beam, dim=1, largest=False)
    return Choice(
        parents=parents.gather(1, going_on),
        words=words.gather(1, going_on),
        scores=found.gather(1, going_on),
        flags=torch.stack([ended, order.ge(size)], 1),
        ending=parents[:, :beam],
        ending_scores=found[:, :beam],
    )


class Beams:
    """All hypotheses of a search that have not ended."""

    def __init__(
        self, sentences: int, beam: int, longest: int, first_word: int, pad: int, device: torch.device
    ) -> None:
        """Begin with ``first_word`` alone, for at most ``longest`` words and an end."""
        rows = sentences * beam
        self.beam = beam
        self.tokens = torch.full((rows, longest + 2), pad, device=device)
        self.tokens[:, 0] = first_word
        self.scores = torch.zeros(rows, longest + 1, device=device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        """The position of the newest word."""
        self.choice: Choice | None = None

    def memory(self) -> list[Tensor]:
        """Return all that changes."""
        assert self.choice is not None
        return [self.tokens, self.scores, self.place, *self.choice]

    def chosen(self) -> Choice:
        """Return what follows the newest word; there is one."""
        assert self.choice is not None
        return self.choice

    def choose(self, candidates: Candidates, eos: int) -> None:
        """Choose what follows the newest word, of the first sentences or all."""
        best = candidates[1][:, : self.beam]
        if self.choice is None:
            self.choice = choose(candidates, torch.zeros_like(best, dtype=torch.bool), eos)
            return
        for kept, new in zip(self.choice, choose(candidates, self.choice.flags[: len(best), 1], eos), strict=True):
            kept[: len(new)] = new

    def parents(self) -> Tensor:
        """Return which row each one goes on from."""
        return self._rows(self.chosen().parents).flatten()

    def ended(self, sentences: int) -> tuple[Tensor, Tensor]:
        """Return which rows of the first ``sentences`` end by the choice, and their scores."""
        choice = Choice(*(x[:sentences] for x in self.chosen()))
        ended = choice.flags[:, 0]
        return self._rows(choice.ending)[ended], choice.ending_scores[ended]

    def _rows(self, hypotheses: Tensor) -> Tensor:
        return hypotheses + self.beam * torch.arange(len(hypotheses), device=hypotheses.device)[:, None]

    def leave(self, keep: Callable[[Tensor], Tensor]) -> None:
        """Reduce all to some sentences.

        Args:
            keep: (B, ...) -> what it keeps of it.
        """
        self.choice = Choice(*map(keep, self.chosen()))
        self.tokens, self.scores = (
            keep(x.unflatten(0, (-1, self.beam))).flatten(0, 1) for x in (self.tokens, self.scores)
        )

    def go_on(self) -> None:
        """Let every hypothesis go on by the word that was chosen."""
        parents, choice = self.parents(), self.chosen()
        for kept, new, place in (
            (self.tokens, choice.words, self.place + 1),
            (self.scores, choice.scores, self.place),
        ):
            kept.copy_(kept.index_select(0, parents))
            kept.index_copy_(1, place, new.reshape(-1, 1))
        self.place.add_(1)
