"""The hypotheses of a beam search: their words and scores so far, and how the next ones are chosen.

Every word does the same work in memory that stays, so that a CUDA graph can have it. Rows are hypotheses, sentence by
sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_residuals.plugin.search.word_choice import Candidates


class Choice(NamedTuple):
    """What follows a word, of B sentences with K hypotheses each."""

    parents: Tensor
    """(B, K), from which hypothesis of its sentence each one goes on."""
    words: Tensor
    """(B, K), the next one of each."""
    scores: Tensor
    """(B, K), with that word."""
    flags: Tensor
    """(B, 2, K): which of the K best candidates end a hypothesis, and which hypotheses are dragged along, ignored."""
    ending: Tensor
    """(B, K), which hypothesis of its sentence each of the K best candidates belongs to."""
    ending_scores: Tensor
    """(B, K), of these candidates."""


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
